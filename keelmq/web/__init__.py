"""Web pages: their sources in frontend/, built into static/, and the self-contained report."""

from keelmq.web.report import ANALYTICS, NOT_BUILT, STATIC, is_built, live_html, report_html

__all__ = ["ANALYTICS", "NOT_BUILT", "STATIC", "is_built", "live_html", "report_html"]
