"""From a URL to a verified connection, in the order of the way.

- `urls` parses the URL
- `endpoint` has the clients of each event loop and of blocking code, and knows where the server is now
- `topology` finds it, in a cluster, too; `embedded` starts it if need be
- `verify` judges whether it can be used, and what its errors mean
- `pool` opens connections, `connection` sends and receives on them, `redis_internals` takes them over from redis-py
"""
