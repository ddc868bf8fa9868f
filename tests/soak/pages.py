"""Every page with a run's worth of data, by the rules of axe-core: both themes, on a screen and on a phone."""

import tempfile
from itertools import product
from pathlib import Path

from support.browser import PHONE, SCREEN, open_browser, serve, visit
from support.realistic_runs import Shape
from support.site_views import barriers, store_site

_THEMES, _SIZES = ("light", "dark"), (SCREEN, PHONE)


def run() -> bool:
    """Look at every page; print what is wrong with it, and return whether nothing is."""
    is_good = True
    with tempfile.TemporaryDirectory() as folder:
        views = store_site(Path(folder), Shape())
        with serve(Path(folder)) as address, open_browser() as browser, visit(browser, address) as window:
            for name, view in views.items():
                found = barriers(window, view, dict.fromkeys(product(_THEMES, _SIZES), ()))
                is_good = is_good and not found
                print(f"{name}: {'; '.join(found) or 'good'}", flush=True)
            window.complaints.clear()  # the browser tells of what is refused
    return is_good
