import re

from modelserver.models.archives.urls import UrlPolicy


def allowing(*patterns):
    return UrlPolicy(tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns), operator_set=True)
