"""The documentation of the API as a plain page, made from the OpenAPI document; no script, no other host."""

from __future__ import annotations

import html
import json
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse


async def documentation(request: Request) -> HTMLResponse:
    """Show every endpoint with its parameters and body."""
    document: dict[str, Any] = request.app.openapi()
    parts = [
        _operation(path, method, each)
        for path, own in document["paths"].items()
        for method, each in own.items()
    ]
    schemas = [_schema(name, each) for name, each in sorted(document["components"]["schemas"].items())]
    title = f"{_text(document['info']['title'])} {_text(document['info']['version'])}: API"
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"></head><body>'
        f"<h1>{title}</h1><p>The same for programs: <a href='/openapi.json'>openapi.json</a>.</p>"
        f"<h2>Endpoints</h2>{''.join(parts)}<h2>Bodies</h2>{''.join(schemas)}</body></html>"
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    lines = "".join(
        f"<li><code>{_text(each['name'])}</code> ({_text(each['in'])}): {_text(_form(each['schema']))}</li>"
        for each in operation.get("parameters", [])
    )
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    reference = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    body = f"<p>Body: <a href='#{_text(reference)}'>{_text(reference)}</a></p>" if reference else ""
    return (
        f"<section><h3><code>{method.upper()} {_text(path)}</code></h3>"
        f"<p>{_text(operation.get('description') or operation.get('summary', ''))}</p>"
        f"{f'<ul>{lines}</ul>' if lines else ''}{body}</section>"
    )


def _schema(name: str, schema: dict[str, Any]) -> str:
    shown = json.dumps(schema, indent=2, ensure_ascii=False)
    return f"<section id='{_text(name)}'><h3>{_text(name)}</h3><pre>{_text(shown)}</pre></section>"


def _form(schema: dict[str, Any]) -> str:
    words = [
        schema.get("type", ""),
        *(f"{key} {schema[key]}" for key in ("enum", "default") if key in schema),
    ]
    return ", ".join(word for word in words if word)


def _text(given: object) -> str:
    return html.escape(str(given), quote=True)
