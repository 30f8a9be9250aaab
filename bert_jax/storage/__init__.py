"""Read and write objects in buckets: Google Cloud Storage (gs://) and Amazon S3 (s3://)."""
