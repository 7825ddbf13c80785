def lint(source):
    return []
