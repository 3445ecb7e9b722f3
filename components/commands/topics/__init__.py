"""`astha topics`, `astha groups`, `astha produce` and `astha consume`."""
