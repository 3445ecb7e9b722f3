"""The registry in one DynamoDB table.

`client` sends requests, `layout` says where each row is, `transaction` reads and writes rows under one commit sequence,
`changes` is what a commit changed and the log keeps, and `consistent_read` reads everything as of one commit. The other
modules are the verbs. docs/parts/dynamodb.md describes the items; decisions 0034 and 0035 give the reasons.
"""
