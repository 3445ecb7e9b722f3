"""Stand-ins for the slow or the unpredictable: small, and in the hands of the test."""
