def terminal(results): return ""
def write(results, docs): pass
