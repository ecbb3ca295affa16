def odd(stage, where, place): pass
def delay(stage, where, place): pass
def memory(stage, where, place): pass
