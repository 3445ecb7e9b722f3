"""`astha catalog`: the registry as an Iceberg REST catalog.

    cli -> process -> app -> security -> routes -> service

    service     namespaces, tables           list, load, rename, drop
                table_changes                create, register, commit
                -> commit_preparation        a request on the current metadata: new metadata, difference of files
                -> commits                   metadata file, one transaction of the registry; again after a lost race

Engines read and write every table of the lake through it. It runs in a process of its own, so that its load never
reaches the daemon, and any number of them serve one registry. The service knows nothing of HTTP.
"""
