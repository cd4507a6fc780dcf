"""Reads what the ranks recorded."""
import json
def read(path): return [json.loads(l) for l in open(path)]
