"""The page, in a browser: what a person does with it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import httpx
import pyarrow as pa
import pytest

from headstart.model import Headstart
from headstart.service.auth import create_token
from headstart.service.store import Store
from tests.service.page.conftest import Open, settle
from tests.service.running import Server

TRICKS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</textarea></title><svg/onload=alert(1)>",
    "javascript:alert(1)",
    "a/b?c#d&e=%2F..",
    "שלום \u202e עולם 😀",
    "__proto__",
    ".",
    "..",
]
VIEWS = ["features", "feature/f3", "row/u3", "feature/seen", "add", "feature/unknown", "rows", "quality"]
VIEWS += ["add-row", "cell", "cell?row=u3&feature=f3"]
VIEWS += ["features?search=nothing+like+this"]
# The charts' tables; a frame later it is known which of them scroll.
OPEN_TABLES = """() => {
  for (const each of document.querySelectorAll("details")) each.open = true;
  return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""
MODES = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "has_touch": True},
}


def mean(api: httpx.Client, name: str) -> float:
    return api.get(f"/v1/features/{quote(name, safe='')}/distribution").json()["mean"]


def add(api: httpx.Client, name: str, **given: object) -> None:
    answer = api.post("/v1/features", json={"name": name, **given})
    assert answer.status_code in (201, 409), answer.text


def test_a_feature_is_added_observed_and_removed(open_page: Open, api: httpx.Client) -> None:
    page = open_page()
    page.get_by_role("link", name="Add a feature").click()
    page.get_by_label("Name", exact=True).fill("Dune 3")
    page.get_by_label("year").fill("2026")
    page.get_by_label("genre").fill("crime")
    page.get_by_label("tags").fill("new, good")
    page.get_by_label("Row", exact=True).fill("u1")
    page.get_by_label("Value (1–5)").fill("4")
    page.get_by_role("button", name="Add it").click()
    page.get_by_role("heading", name="Dune 3", level=1).wait_for()
    settle(page)
    shown = api.get("/v1/features/Dune%203").json()
    assert shown["metadata"] == {"year": 2026, "genre": "crime", "tags": ["new", "good"]}
    assert shown["observations"] == {"u1": 4}
    assert "1 observation" in page.locator("#facts").inner_text()
    before = mean(api, "Dune 3")
    assert f"mean {before:.2f}" in page.get_by_role("img", name="Predicted distribution").get_attribute(
        "aria-label"
    )

    asked = page.get_by_role("button", name="Enter the value of").first
    row = asked.get_attribute("aria-label").removeprefix("Enter the value of ")
    asked.click()
    assert page.get_by_label("Row", exact=True).first.input_value() == row
    page.keyboard.type("1")  # the field of the value has the focus
    page.get_by_role("button", name="One more line").click()
    other = "u2" if row != "u2" else "u4"
    page.get_by_label("Row", exact=True).nth(1).fill(other)
    page.get_by_label("Value (1–5)").nth(1).fill("1")
    page.get_by_role("button", name="Save observations").click()
    effect = page.get_by_text("Added 2 observations; the feature now has 3 observations.")
    effect.wait_for()
    after = mean(api, "Dune 3")
    assert after < before
    assert f"{before:.2f} → {after:.2f}" in page.locator(".effect").inner_text()
    chart = page.get_by_role("img", name="Predicted distribution")
    chart.locator(".before").wait_for(state="attached")
    assert f"mean {after:.2f}" in chart.get_attribute("aria-label")
    assert "Before" in chart.get_attribute("aria-label")
    page.get_by_role("img", name="How the prediction moved").wait_for()

    page.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    page.get_by_role("heading", name="Features", level=1).wait_for()
    assert api.get("/v1/features/Dune%203").status_code == 404


def test_a_row_is_explained_and_removed(open_page: Open, api: httpx.Client) -> None:
    given = {"name": "someone", "observations": {"f1": 5, "f2": 1, "f3": 4}}
    assert api.post("/v1/rows", json=given).status_code == 201
    page = open_page("#/rows")
    page.get_by_label("Search by name").fill("SOMEo")
    page.get_by_role("link", name="someone").click()
    page.get_by_role("heading", name="someone", level=1).wait_for()
    settle(page)
    assert "Observed 3 features" in page.locator(".lead").inner_text()
    why = page.get_by_role("button", name="Why").nth(2)
    feature = why.get_attribute("aria-label").removeprefix("Why ")
    why.click()
    chart = page.get_by_role("img", name=f"Why: {feature}:")
    chart.wait_for()
    found = api.post("/v1/explain", json={"row": "someone", "feature": feature, "n": 10}).json()
    assert f"{found['baseline']:.2f} to {found['output']:.2f}" in chart.get_attribute("aria-label")
    parts = sum(each["value"] for each in found["contributions"])
    assert found["baseline"] + parts == pytest.approx(found["output"], abs=1e-3)

    for answer, status in (("Cancel", 200), ("Remove", 404)):
        page.get_by_role("button", name="Remove this row").click()
        page.get_by_role("dialog").get_by_role("button", name=answer).click()
        if status == 404:
            page.get_by_role("heading", name="Rows", level=1).wait_for()
        assert api.get("/v1/rows/someone").status_code == status


def test_a_row_is_added_and_observed_on_the_page(open_page: Open, api: httpx.Client) -> None:
    page = open_page("#/rows")
    page.get_by_role("link", name="Add a row").click()
    page.get_by_label("Name", exact=True).fill("newcomer")
    page.get_by_label("Feature", exact=True).fill("f1")
    page.get_by_label("Value").fill("5")
    page.get_by_role("button", name="Add it").click()
    page.get_by_role("heading", name="newcomer", level=1).wait_for()
    settle(page)
    assert api.get("/v1/rows/newcomer").json()["observations"] == {"f1": 5}
    page.get_by_label("Feature", exact=True).fill("f2")
    page.get_by_label("Value").fill("2")
    page.get_by_role("button", name="Save observations").click()
    page.get_by_text("Added 1 observation.").wait_for()
    assert "Observed 2 features" in page.locator(".lead").inner_text()
    assert api.get("/v1/rows/newcomer").json()["observations"] == {"f1": 5, "f2": 2}
    page.get_by_label("Feature", exact=True).fill("no such film")
    page.get_by_label("Value").fill("2")
    page.get_by_role("button", name="Save observations").click()
    told = page.get_by_role("alert").filter(has_text="no such film")
    told.wait_for()
    assert "()" not in told.inner_text()


def test_a_cell_is_looked_up(open_page: Open, api: httpx.Client) -> None:
    page = open_page("#/cell")
    page.get_by_label("Row", exact=True).fill("u3")
    page.get_by_label("Feature", exact=True).fill("f3")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("img", name="Why: f3:").wait_for()
    body = {"rows": ["u3"], "features": ["f3"]}
    (found,) = api.post("/v1/predict", json=body).json()["predictions"]
    assert page.locator(".values").inner_text() == f"{found['mean']:.2f}"
    observed = api.get("/v1/rows/u3").json()["observations"].get("f3")
    said = "It was not observed." if observed is None else f"Observed: {observed:g}."
    page.get_by_text(said).wait_for()
    page.reload()  # the address names the cell
    page.get_by_role("img", name="Why: f3:").wait_for()
    page.get_by_label("Row", exact=True).fill("nobody")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("alert").filter(has_text="nobody").wait_for()


def test_the_page_speaks_the_words_of_the_table(open_page: Open, tmp_path: Path) -> None:
    lines = [(f"u{i}", f"m{j}", 1 + (i * j) % 5) for i in range(12) for j in range(6) if (i + j) % 4]
    ratings = pa.table(dict(zip(("user_id", "film", "stars"), zip(*lines, strict=True), strict=True)))
    films = pa.table({"film": [f"m{j}" for j in range(6)], "headline": [f"Tale {j}" for j in range(6)]})
    columns = {"row": "user_id", "feature": "film", "value": "stars", "words": {"title": "headline"}}
    model = Headstart(adapter="bayes", quiet=True).fit(ratings, metadata=films, **columns)
    model.save(tmp_path / "films.headstart")
    with Server(tmp_path / "films.headstart", f"sqlite:///{tmp_path / 'store.db'}") as server:
        page = open_page("", address=server.address)
        page.get_by_role("heading", name="Films", level=1).wait_for()
        page.get_by_role("link", name="Add a film").wait_for()
        page.get_by_label("Search by name or title").fill("tale 4")
        page.get_by_text("1 film with “tale 4”").wait_for()
        page.get_by_role("link", name="Tale 4").click()
        page.get_by_role("heading", name="Tale 4", level=1).wait_for()
        settle(page)
        page.get_by_label("User", exact=True).fill("u99")
        page.get_by_label("Stars (1–5)").fill("5")
        page.get_by_role("button", name="Save observations").click()
        page.get_by_role("alert").filter(has_text="unknown user 'u99'").wait_for()
        page.get_by_label("User", exact=True).fill("u3")
        page.get_by_role("button", name="Save observations").click()
        page.get_by_text("the film now has").wait_for()
        page.get_by_role("link", name="Users", exact=True).first.click()
        page.get_by_role("heading", name="Users", level=1).wait_for()
        page.get_by_role("link", name="u3", exact=True).click()
        page.get_by_role("button", name="Remove this user").wait_for()
        settle(page)
        assert "stars from" in page.get_by_role("img", name="Why:").get_attribute("aria-label")


def test_the_list_shows_predictions_on_a_phone(open_page: Open) -> None:
    page = open_page(**MODES["phone"])
    line = page.get_by_role("row").nth(1)
    assert all(cell.is_visible() for cell in line.get_by_role("cell").all())


def test_names_are_shown_as_text(open_page: Open, api: httpx.Client) -> None:
    page = open_page()
    for name in TRICKS:
        add(api, name, metadata={"genre": name, "tags": [name]})
        assert api.post("/v1/rows", json={"name": name, "observations": {name: 4}}).status_code == 201
        page.evaluate("name => { location.hash = `#/feature/${encodeURIComponent(name)}`; }", name)
        page.get_by_role("button", name="Remove").wait_for()
        settle(page)
        assert page.locator("h1").text_content() == name
        assert page.get_by_text(name, exact=True).count() > 2  # its metadata too
        page.locator("tbody").get_by_role("link", name=name, exact=True).first.click()  # the row that saw it
        page.get_by_role("button", name="Remove this row").wait_for()
        settle(page)
        assert page.locator("h1").text_content() == name
        assert page.locator("main img, main script, main [onload], main [onerror]").count() == 0
        page.get_by_role("link", name="Features", exact=True).click()
        page.get_by_label("Search by name").fill(name[:9])
        page.get_by_role("link", name=name, exact=True).first.wait_for()
        assert page.locator("main img, main script, main [onload], main [onerror]").count() == 0


def test_what_is_wrong_is_said_and_changes_nothing(open_page: Open, api: httpx.Client) -> None:
    add(api, "careful")
    page = open_page("#/feature/careful")
    for row, value, said in (
        ("nobody", "3", "nobody"),
        ("u1", "", "Enter the value of u1"),
        ("", "3", "Name the row"),
    ):
        page.get_by_label("Row", exact=True).first.fill(row)
        page.get_by_label("Value (1–5)").first.fill(value)
        page.get_by_role("button", name="Save observations").click()
        page.get_by_role("alert").filter(has_text=said).wait_for()
    assert api.get("/v1/features/careful").json()["shots"] == 0
    page = open_page("#/add")
    page.get_by_label("Name", exact=True).fill("f1")
    page.get_by_role("button", name="Add it").click()
    page.get_by_role("alert").filter(has_text="f1").wait_for()
    assert page.get_by_label("Name", exact=True).input_value() == "f1"


def test_features_are_searched_sorted_and_paged(open_page: Open, api: httpx.Client) -> None:
    for place in range(30):
        add(api, f"paged {place:02}")
    page = open_page("#/features")
    page.get_by_label("Search by name").fill("paged")
    page.get_by_text("30 features with “paged” in the name").wait_for()
    page.get_by_label("Sort").select_option("name asc")
    page.locator("tbody tr").first.get_by_text("paged 00").wait_for()
    assert page.locator("tbody tr").count() == 25
    page.get_by_role("link", name="Next →").click()
    page.get_by_text("26–30 of 30").wait_for()
    assert page.locator("tbody th a").all_inner_texts() == [f"paged {place}" for place in range(25, 30)]
    page.go_back()
    page.get_by_text("1–25 of 30").wait_for()


def test_quality_is_drawn(open_page: Open, api: httpx.Client) -> None:
    add(api, "surprising", observations={"u1": 5})
    for row in ("u2", "u3"):
        line = {"row": row, "feature": "surprising", "value": 1}
        assert api.post("/v1/observations", json={"observations": [line]}).status_code == 200
    page = open_page("#/quality")
    page.get_by_role("img", name="90 % intervals of kind rating").wait_for()
    points = len(api.get("/v1/quality").json()["surprise"])
    assert page.get_by_role("img", name="Surprise over time").locator("circle").count() == points
    assert page.get_by_text("not judged on features held out").count() == 1

    curve = [{"shots": k, "error": 0.9 - k / 100, "standard_error": 0.01} for k in (0, 1, 2, 4, 8)]

    means = [{**point, "error": point["error"] + 0.2} for point in curve]

    def judged(route) -> None:  # as a model that was judged answers; to fit one takes long
        answer = route.fetch()
        facts = {"judged_on": 12, "curve": curve, "means": means}
        route.fulfill(response=answer, json={**answer.json(), **facts})

    page.route("**/v1/quality", judged)
    page.reload()
    chart = page.get_by_role("img", name="Error by number of observations")
    chart.wait_for()
    assert "On 12 features held out of training: 0.900 at 0 observations, 0.820 at 8" in chart.get_attribute(
        "aria-label"
    )
    assert chart.locator("circle").count() == len(curve)
    assert chart.locator("path.compared").count() == 1
    page.locator("figure", has=chart).get_by_text("As a table").click()
    page.get_by_role("columnheader", name="Row and column means").wait_for()
    assert page.get_by_role("cell", name="1.1", exact=True).count() == 1


def test_the_keyboard_is_enough(open_page: Open) -> None:
    page = open_page("#/features")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")  # the first thing of the view
    assert page.evaluate("document.activeElement.textContent") == "Add a feature"
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Add a feature").wait_for()
    assert page.evaluate("document.activeElement.tagName") == "H1"


def test_a_token_is_asked_for_once(open_page: Open, model_path: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with Store(url) as store:
        token = create_token(store, "page", ["write"])
    with Server(model_path, url) as server:
        page = open_page("#/feature/f1", address=server.address)
        for given in ("wrong", token):
            page.get_by_label("Token", exact=True).fill(given)
            page.get_by_role("button", name="Use it").click()
        page.get_by_role("heading", name="f1", level=1).wait_for()
        page.reload()
        settle(page)
        assert page.locator("dialog").count() == 0
        assert page.locator("h1").inner_text() == "f1"


@pytest.mark.parametrize("mode", MODES)
def test_every_view_is_accessible_and_fits(open_page: Open, api: httpx.Client, axe: str, mode: str) -> None:
    add(api, "seen", observations={"u1": 5})
    lines = [{"row": f"u{place}", "feature": "seen", "value": 4} for place in range(2, 5)]
    for line in lines:
        api.post("/v1/observations", json={"observations": [line]})
    page = open_page(**MODES[mode])
    page.evaluate(axe)
    only = {"runOnly": ["color-contrast"]} if mode == "dark" else {}  # all else is as in the light
    for view in VIEWS:
        page.evaluate("view => { location.hash = `#/${view}`; }", view)
        page.locator(f"main:not([aria-busy]) > .{view.partition('/')[0].partition('?')[0]}").wait_for()
        settle(page)
        page.evaluate(OPEN_TABLES)
        found = page.evaluate("only => axe.run(document, {resultTypes: ['violations'], ...only})", only)
        told = [
            (each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found["violations"]
        ]
        assert told == [], view
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
