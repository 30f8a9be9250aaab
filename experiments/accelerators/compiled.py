"""Compile one train step with the checkout on PYTHONPATH, and write its text and statistics."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bert_jax.analysis.topology import topology_devices


def main() -> None:
    """Compile the step, or read the result of an earlier call from the cache of `plan`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("topology")
    parser.add_argument("output", type=Path)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    devices = topology_devices(args.topology)
    # Import JAX only now, because `topology_devices` sets variables that JAX reads on import.
    from bert_jax.pretraining.plan import plan
    from bert_jax.recipes.load import load_config

    config = load_config(args.config, args.overrides, kind="pretrain")
    (phase,) = plan(config, devices, tries=0).phases
    if phase.step is None:
        raise SystemExit(f"the step does not fit: {phase.refused}")
    statistics = {
        "attention": config.step_setup(devices[0]).compute.attention,
        "device_kind": devices[0].device_kind,
        "model_flops": phase.model_flops,
        "compile_seconds": round(phase.compile_seconds),
        "temporaries": phase.step.temporaries,
        # Older checkouts do not record the work of Pallas kernels.
        "pallas": dict(getattr(phase.step, "pallas", {})),
        "text": phase.step.text,
    }
    args.output.write_text(json.dumps(statistics), encoding="utf-8")


if __name__ == "__main__":
    main()
