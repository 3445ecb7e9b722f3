"""From a commit to `on_event`: rate, latency, isolation and recovery, against pg_recvlogical and Debezium."""
