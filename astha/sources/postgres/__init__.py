"""PostgreSQL's write-ahead log, by logical replication (pgoutput) on psycopg 3."""
