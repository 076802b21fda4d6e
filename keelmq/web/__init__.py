"""Web pages: HTML, scripts and vendored libraries as package data, and the self-contained report."""

from keelmq.web.report import STATIC, live_html, report_html

__all__ = ["STATIC", "live_html", "report_html"]
