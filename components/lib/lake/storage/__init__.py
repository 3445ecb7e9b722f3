"""Objects on local disk and S3-compatible storage, and the locations that hold them."""
