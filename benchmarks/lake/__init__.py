"""Inserts, registration and Iceberg commits, against PyArrow and stock PyIceberg."""
