"""Package metadata: a range begins at a version the tests passed on and ends before the next."""

import re
from pathlib import Path

from setuptools import find_namespace_packages, find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "bert_jax/version.py").read_text()).group(1)

REQUIRES = [
    # computing
    "jax>=0.10.2,<0.13",
    "flax>=0.12.8,<0.13",
    "optax>=0.2.8,<0.3",
    "flatbuffers>=25.12",  # what jax.export writes with
    "orbax-checkpoint>=0.12.8,<0.13",
    "numpy>=2.4,<3",
    "xxhash>=4.1,<5",  # checksums of checkpoints
    # reading
    "array_record>=0.8.6,<0.9",
    "tensorflow-datasets>=4.9.10,<5",
    "importlib_resources>=7.1,<8",  # tensorflow-datasets imports it without declaring it
    "pyarrow>=25,<27",
    "zstandard>=0.25,<1",
    "safetensors>=0.8,<0.9",
    "huggingface_hub>=2.4,<3",
    "tokenizers>=0.23.3,<0.24",
    "sentencepiece>=0.2.3,<0.3",
    "protobuf>=7.36,<8",  # what sentencepiece's models are written in
    "sentencex>=1.0.32,<2",
    # scoring
    "scikit-learn>=1.9,<2",
    "scipy>=1.17,<2",
    # configuring and reporting
    "absl-py>=2.5,<3",
    "ml_collections>=1.1,<2",
    "matplotlib>=3.11,<4",
    "tensorboardX>=2.6.5,<3",
]

# What tensorflow-datasets builds tfds:wikipedia with, and does not install itself.
WIKIPEDIA = ["apache-beam>=2.77,<3", "mwparserfromhell>=0.6,<1", "mwxml>=0.3,<1"]

# What other frameworks' models are read, written and run with; installed for the formats in use.
TORCH = ["torch>=2.6", "transformers>=5.23,<6"]
ONNX = ["onnx>=1.23,<2", "onnx-ir>=1.1,<2", "onnxruntime>=1.31,<2"]
TENSORFLOW = [
    "tensorflow-cpu>=2.21,<3; sys_platform == 'linux'",
    "tensorflow>=2.21,<3; sys_platform != 'linux'",
]

# These packages build the documentation, and parse its pages in the tests.
DOCS = ["sphinx>=9.0.4,<10", "myst-parser>=5.2,<6", "furo>=2025.12.19"]

# The browser test controls Chromium with this package; pip does not install Chromium itself.
BROWSER = ["playwright>=1.50,<2"]

DEV = [
    *DOCS,
    *ONNX,
    *TENSORFLOW,
    "mypy>=2.4,<3",
    "pytest>=9.2,<10",
    "pytest-xdist>=3.8,<4",
    "ruff>=0.17.5,<0.18",
    # the yardsticks the tests compare against
    "accelerate>=1.15,<2",  # which transformers' Trainer needs
    "sentence-transformers>=6.2,<7",
    "seqeval>=1.2.2,<2",
    "torch==2.13.*",
    "transformers>=5.23,<6",
]

# Recipes stay at the top of a checkout; wheels have them in bert_jax/recipes.
RECIPES = {
    f"bert_jax.recipes.{package}": f"configs/{package.replace('.', '/')}"
    for package in find_namespace_packages("configs", exclude=["*__pycache__*"])
}

setup(
    name="bert_jax",
    version=VERSION,
    description="BERT and its family in JAX: from raw text to a pretrained, resumable encoder.",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=[*find_packages(include=["bert_jax", "bert_jax.*"]), *RECIPES],
    package_dir=RECIPES,
    package_data={"bert_jax": ["py.typed"]},
    install_requires=REQUIRES,
    extras_require={
        "cuda13": ["jax[cuda13]"],
        "tpu": ["jax[tpu]"],
        "wikipedia": WIKIPEDIA,
        "torch": TORCH,
        "onnx": ONNX,
        "tensorflow": TENSORFLOW,
        "docs": DOCS,
        "browser": BROWSER,
        "dev": DEV,
    },
    # An entry of sys.path, not a finder of its own: Python asks those last, and takes a checkout in
    # the current directory, which is called as the package is, for a package without files.
    options={"editable_wheel": {"mode": "compat"}},
    entry_points={"console_scripts": ["bert-jax = bert_jax.cli.main:main"]},
)
