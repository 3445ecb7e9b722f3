"""Libraries of the components: the lake, streams of records, Spark. Nothing here subscribes to anything."""
