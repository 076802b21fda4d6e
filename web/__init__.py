"""The pages: HTML, scripts and vendored libraries as package data, and the self-contained report."""
