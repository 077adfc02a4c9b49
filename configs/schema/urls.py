"""Secrets in URLs: options are written to logs and files, so that no URL in them may contain one."""

import re

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)(.?)", re.DOTALL)


def secret_in_url(path: str) -> str | None:
    """The reason why this URL may contain a secret, without the secret; None for other URLs and for paths of files."""
    url = _URL.match(path)
    if not url:
        return None
    scheme, host, rest, mark = url.groups()
    if "@" in host or (":" in host and "@" in rest):  # the latter: a password with a '/'
        is_web = scheme.lower() in ("http", "https")
        fix = "use a server without a login" if is_web else "set credentials in the environment (AWS_*, GOOGLE_*)"
        return f"the {scheme} URL contains a user or password; remove it, and {fix}"
    if mark and scheme.lower() != "file":
        return f"the {scheme} URL contains '?' or '#'; give the URL of a folder or a pattern, without a query"
    return None
