from ftrie.dashboard.pages.layout import Refresh, View


def build(view: View) -> Refresh:
    return lambda: None
