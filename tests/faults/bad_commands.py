"""Commands that must be refused: (what, arguments, exit code, a part of the message)."""

from __future__ import annotations

Case = tuple[str, list[str], int, str]

FILES: dict[str, bytes] = {
    "long.csv": b"row,feature,value\n" + b"".join(b"u%d,f%d,%d\n" % (i, i % 5, 1 + i % 4) for i in range(20)),
    "user.csv": b"user,film,stars\nu1,f1,5\nu2,f1,3\n",
    "wide.csv": b"row,a,b\nu1,1,2\nu2,3,4\n",
    "films.csv": b"film,year\nf1,1990\n",
    "films.txt": b"film,year\n",
    "twice.csv": b"row,feature,value\nu1,f1,5\nu1 ,f1,3\n",
    "decimal.csv": b"row;feature;value\nu1;f1;3,5\n",
    "latin.csv": "row,feature,value\nzoé,f1,3\n".encode("latin-1"),
    "text.csv": b"row,feature,value\nu1,f1,good\n",
    "first.csv": b"row,value\nu1,5\nu2,3\n",
    "stranger.csv": b"row,value\nnobody,5\n",
    "high.csv": b"row,value\nu1,9\n",
    "repeated.csv": b"row,value\nu1,5\n u1,3\n",
    "blank.csv": b"row,value\nu1,\n",
    "broken.csv.gz": b"row,value\n",
    "broken.parquet": b"PAR1",
    "new.csv": b"row,feature,value\nx,f1,9\n",
    "unknown.csv": b"row,feature,value\nx,f99,3\n",
    "names.txt": b"u1\nnobody\n",
    "nothing.txt": b"\n\n",
    "latin.txt": "zoé\n".encode("latin-1"),
    "list.json": b"[1, 2]",
    "broken.json": b"{",
}
FIT = ["fit", "long.csv", "--out", "x"]
BENCHMARK = ["benchmark", "long.csv", "--out", "x"]
# Before a file is read: the file does not exist.
EARLY = ["fit", "nowhere.csv", "--out", "x"]

# Options of both fit and benchmark.
OPTIONS: list[tuple[str, list[str], str]] = [
    ("no file", ["nowhere.csv"], "there is no file nowhere.csv"),
    ("similar file", ["logn.csv"], "did you mean 'long.csv'?"),
    ("folder", ["m"], "m is a folder"),
    ("file type", ["films.txt"], "films.txt has an unsupported file type"),
    (
        "no row",
        ["user.csv"],
        "user.csv has no column 'row' (--row row); its columns are 'user', 'film', 'stars'",
    ),
    ("other row", ["user.csv", "--row", "usr"], "no column 'usr' (--row usr)"),
    (
        "other feature",
        ["user.csv", "--row", "user", "--feature", "flim"],
        "no column 'flim' (--feature flim)",
    ),
    ("other value", ["user.csv", "--row", "user", "--value", "satrs"], "no column 'satrs' (--value satrs)"),
    ("with a space", ["wide.csv", "--value", "the stars"], "no column 'the stars' (--value 'the stars')"),
    (
        "wide, other feature",
        ["wide.csv", "--feature", "film"],
        "no column 'film' (--feature film); its columns are",
    ),
    ("wide, usual feature", ["wide.csv", "--feature", "feature"], "no column 'feature' (--feature feature)"),
    ("no metadata", ["long.csv", "--metadata", "nowhere.csv"], "there is no file nowhere.csv"),
    (
        "other metadata",
        ["long.csv", "--metadata", "films.csv"],
        "films.csv has no column 'feature' (--feature feature)",
    ),
    ("form", ["long.csv", "--form", "broad"], "form must be 'auto', 'long' or 'wide'; got 'broad'"),
    (
        "duplicates",
        ["long.csv", "--duplicates", "first"],
        "duplicates must be one of error, last, mean, sum; got 'first'",
    ),
    ("twice", ["twice.csv"], "correct the data or use --duplicates last or --duplicates mean"),
    ("twice in two spellings", ["twice.csv"], "(row 'u1' is written as 'u1' and 'u1 ')"),
    (
        "kind",
        ["long.csv", "--kind", "ratng"],
        "'ratng' is not a kind (binary, rating, real",
    ),
    ("kind of a feature", ["long.csv", "--kind", "f1=ratng"], "'ratng' is not a kind"),
    ("kind of no feature", ["long.csv", "--kind", "=real"], "--kind must be KIND or FEATURE=KIND"),
    ("no kind of a feature", ["long.csv", "--kind", "f1="], "--kind must be KIND or FEATURE=KIND"),
    ("two kinds", ["long.csv", "--kind", "real", "--kind", "binary"], "--kind gives all features two kinds"),
    (
        "two kinds of one",
        ["long.csv", "--kind", "f1=real", "--kind", "f1=binary"],
        "--kind gives 'f1' two kinds",
    ),
    ("kind of a stranger", ["long.csv", "--kind", "f99=real"], "unknown feature 'f99'"),
    ("value of another kind", ["long.csv", "--kind", "f4=binary"], "another kind, as in --kind f4=real"),
    ("type", ["long.csv", "--metadata-type", "year"], "--metadata-type must be NAME=TYPE"),
    ("two types", ["long.csv", *["--metadata-type", "a=date"] * 2], "--metadata-type gives 'a' two types"),
    (
        "type of nothing",
        ["long.csv", "--metadata-type", "year=date"],
        "--metadata-type was given, but there are no columns",
    ),
    (
        "decimal point",
        ["decimal.csv"],
        "line 2: '3,5' in column 'value' is not a number (row 'u1', feature 'f1'); use --decimal ,",
    ),
    ("separator", ["decimal.csv", "--separator", ","], "its columns are 'row;feature;value'"),
    (
        "long separator",
        ["long.csv", "--separator", "::"],
        "separator must be one character, such as ';'; got '::'",
    ),
    ("encoding", ["latin.csv"], "it is not UTF-8 text; name its encoding, as in --encoding latin-1"),
    ("unknown encoding", ["latin.csv", "--encoding", "latn-1"], "encoding 'latn-1' is unknown"),
    ("text", ["text.csv"], "line 2: 'good' in column 'value' is not a number"),
    ("gzip", ["broken.csv.gz"], "broken.csv.gz cannot be read: Not a gzipped file"),
    ("parquet", ["broken.parquet"], "broken.parquet is not a readable Parquet file"),
    ("meta share", ["long.csv", "--meta-share", "2"], "Input should be less than 1; got 2.0"),
    ("backbone", ["long.csv", "--backbone", "pvea"], "unknown backbone 'pvea'; did you mean 'pvae'?"),
]
CONTEXTS: list[tuple[str, list[str], str]] = [
    ("no file", ["nowhere.csv"], "there is no file nowhere.csv"),
    ("no row", ["user.csv"], "user.csv has no column 'row' (--row row)"),
    ("no value", ["user.csv", "--row", "user"], "user.csv has no column 'value' (--value value)"),
    ("stranger", ["stranger.csv"], "unknown row 'nobody'; a context can only hold rows the model knows"),
    ("high", ["high.csv"], "the value 9 at 'u1' is not from 1 to 5"),
    (
        "repeated",
        ["repeated.csv"],
        "row 'u1' has more than one value (it is written as 'u1' and ' u1'); keep one",
    ),
    ("blank", ["blank.csv"], "blank.csv contains no observations"),
    ("gzip", ["broken.csv.gz"], "broken.csv.gz cannot be read: Not a gzipped file"),
    ("parquet", ["broken.parquet"], "broken.parquet is not a readable Parquet file"),
    ("separator", ["first.csv", "--separator", "::"], "separator must be one character"),
    ("encoding", ["first.csv", "--encoding", "latn-1"], "encoding 'latn-1' is unknown"),
]
MODELS: list[tuple[str, list[str], str]] = [
    ("no model", ["info", "nowhere"], "nowhere is not a saved model: there is no such folder"),
    ("a file", ["info", "long.csv"], "long.csv is not a saved model"),
    ("no model to add to", ["add-feature", "nowhere", "new"], "there is no such folder"),
    (
        "taken",
        ["add-feature", "m", "f1"],
        "feature 'f1' is already in the model; use headstart observe-feature to add",
    ),
    ("taken with spaces", ["add-feature", "m", " f1 "], "feature 'f1' is already in the model"),
    ("empty name", ["add-feature", "m", ""], "'' cannot be a feature"),
    (
        "surrogate",
        ["add-feature", "m", "f\udcff"],
        "'f\\udcff' cannot be a feature: it has bytes that are not valid UTF-8",
    ),
    ("kind", ["add-feature", "m", "new", "--kind", "ratng"], "'ratng' is not a kind"),
    (
        "kind not fitted",
        ["add-feature", "m", "new", "--kind", "binary"],
        "feature 'new': kind binary is not among those",
    ),
    (
        "another kind",
        ["add-feature", "m", "new", "--observations", "high.csv"],
        "; --kind gives the feature another kind",
    ),
    ("no JSON", ["add-feature", "m", "new", "--metadata", "{year"], "--metadata is neither a file nor JSON"),
    (
        "broken JSON",
        ["add-feature", "m", "new", "--metadata", "broken.json"],
        "--metadata broken.json is a file without JSON",
    ),
    ("JSON list", ["add-feature", "m", "new", "--metadata", "list.json"], "--metadata must be a JSON object"),
    ("not UTF-8", ["add-feature", "m", "new", "--metadata", "latin.txt"], "latin.txt is not UTF-8 text"),
    ("metadata", ["add-feature", "m", "new", "--metadata", '{"yaer": 1}'], "unknown metadata 'yaer'"),
    (
        "metadata value",
        ["add-feature", "m", "new", "--metadata", '{"year": "x"}'],
        "metadata 'year' must be a finite number",
    ),
    ("unknown feature", ["observe-feature", "m", "f99", "first.csv"], "unknown feature 'f99'"),
    ("suggest for an unknown feature", ["suggest", "m", "f99"], "unknown feature 'f99'"),
    ("suggest an unknown row", ["suggest", "m", "f1", "--rows", "nobody"], "unknown row 'nobody'"),
    ("suggest from a file", ["suggest", "m", "f1", "--rows", "names.txt"], "unknown row 'nobody'"),
    ("predict an unknown row", ["predict", "m", "--rows", "u1,nobody"], "unknown row 'nobody'"),
    ("predict unknown rows", ["predict", "m", "--rows", "nobody,noone"], "2 unknown rows: 'nobody', 'noone'"),
    ("predict an unknown feature", ["predict", "m", "--features", "f99"], "unknown feature 'f99'"),
    ("no rows", ["predict", "m", "--rows", "nothing.txt"], "--rows gives no name; leave it out to use all"),
    ("rows not UTF-8", ["predict", "m", "--rows", "latin.txt"], "latin.txt is not UTF-8 text"),
    ("level", ["predict", "m", "--rows", "u1", "--level", "90"], "between 0 and 1; got 90.0"),
    ("out", ["predict", "m", "--out", "x.xls"], "--out must end in .csv or .parquet; got 'x.xls'"),
    ("out in no folder", ["predict", "m", "--out", "no/x.csv"], "the folder no does not exist"),
    (
        "both",
        ["predict", "m", "--rows", "u1", "--new-rows", "new.csv"],
        "give either --rows or --new-rows, not both",
    ),
    (
        "new rows",
        ["predict", "m", "--new-rows", "new.csv"],
        "row 'x': the value 9 at 'f1' is not from 1 to 5",
    ),
    ("new rows, unknown feature", ["predict", "m", "--new-rows", "unknown.csv"], "unknown feature 'f99'"),
    ("new rows, no file", ["predict", "m", "--new-rows", "nowhere.csv"], "there is no file nowhere.csv"),
    ("new rows, columns", ["predict", "m", "--new-rows", "user.csv"], "no column 'row' (--row row)"),
    (
        "fit to a file",
        ["fit", "long.csv", "--out", "long.csv"],
        "long.csv is a file; a model is saved as a folder",
    ),
    ("adapter", [*EARLY, "--adapter", "chnn"], "unknown method 'chnn'; did you mean 'chn'?"),
    ("methods", [*BENCHMARK, "--methods", "chnn"], "unknown method 'chnn'; did you mean 'chn'?"),
    ("shots", [*BENCHMARK, "--shots", "one"], "--shots must be whole numbers separated by commas; got 'one'"),
    (
        "download",
        ["fetch", "movielens", "--to", "."],
        "unknown download 'movielens'; did you mean 'movielens-1m'?",
    ),
]
USAGE: list[tuple[str, list[str], str]] = [
    ("command", ["ft"], "No such command 'ft'"),
    ("option", ["fit", "long.csv", "--ouput", "x"], "No such option"),
    ("option by name", ["fit", "long.csv", "--ouput", "x"], "--ouput"),
    ("no out", ["fit", "long.csv"], "Missing option '--out'"),
    ("no model", ["info"], "Missing argument"),
    ("seed", [*FIT, "--seed", "x"], "'--seed'"),
    ("negative seed", [*FIT, "--seed", "-1"], "'--seed'"),
    ("n", ["suggest", "m", "f1", "-n", "0"], "'-n'"),
    ("no number", ["predict", "m", "--level", "high"], "'--level'"),
]


def command_cases() -> list[Case]:
    """Return all cases."""
    cases: list[Case] = []
    for command in ("fit", "benchmark"):
        cases += [
            (f"{command}-{what}", [command, *rest, "--out", "x"], 1, said) for what, rest, said in OPTIONS
        ]
    for command in (["add-feature", "m", "new", "--observations"], ["observe-feature", "m", "f1"]):
        cases += [(f"{command[0]}-{what}", [*command, *rest], 1, said) for what, rest, said in CONTEXTS]
    cases += [(f"model-{what}", arguments, 1, said) for what, arguments, said in MODELS]
    return cases + [(f"usage-{what}", arguments, 2, said) for what, arguments, said in USAGE]
