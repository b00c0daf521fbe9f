#!/bin/bash
# A page of the lab in a headless browser, at three widths and printed: no two labels of a plot
# touch and none leaves its plot, plots have names, nothing is wider than the window, nothing else
# is loaded.
#   browser.sh [PAGE...]    default: the example that the tests of cairn-lab compare
set -eu
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- crates/lab/tests/page/example.html
command -v chromium >/dev/null || { echo "SKIP: needs chromium"; exit 77; }

work=$(mktemp -d "${TMPDIR:-/tmp}/cairn-pages.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The page has no script of its own: this one is appended to a copy.
cat >"$work/check.html" <<'END'
<pre id="found"></pre>
<script>
addEventListener("load", () => {
  const found = [];
  const name = text => JSON.stringify(text.textContent.slice(0, 40));
  let labels = 0;
  for (const svg of document.querySelectorAll("svg")) {
    const place = text => [text, text.getBoundingClientRect()];
    const texts = [...svg.querySelectorAll("text")].map(place);
    const plot = svg.getBoundingClientRect();
    labels += texts.length;
    texts.forEach(([a, box], i) => {
      if (box.width === 0) found.push(`${name(a)} is not drawn`);
      if (box.left < plot.left - 1 || box.right > plot.right + 1 || box.bottom > plot.bottom + 1)
        found.push(`${name(a)} leaves its plot`);
      for (const [b, other] of texts.slice(i + 1)) {
        // The boxes of letters are higher than the letters.
        const slack = box.height * 0.2;
        if (box.left < other.right && other.left < box.right &&
            box.top + slack < other.bottom - slack && other.top + slack < box.bottom - slack)
          found.push(`${name(a)} touches ${name(b)}`);
      }
    });
    for (const id of (svg.getAttribute("aria-labelledby") || "none").split(" "))
      if (!document.getElementById(id)?.textContent) found.push(`a plot has no ${id}`);
  }
  for (const table of document.querySelectorAll("table"))
    if (!table.caption || table.querySelector("th:not([scope])"))
      found.push("a table has no names");
  if (labels < 3) found.push(`only ${labels} labels`);
  if (document.documentElement.scrollWidth > innerWidth) found.push("the page is too wide");
  for (const entry of performance.getEntriesByType("resource")) found.push(`loads ${entry.name}`);
  if (document.querySelector("[src], [href]")) found.push("names another file");
  if (found.length === 0) found.push("nothing wrong");
  const lines = found.map(line => `\nFOUND: ${line}`);
  document.getElementById("found").textContent = lines.join("") + "\n";
});
</script>
END

browse() { # OPTION... URL
  timeout -k 5 60 chromium --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" \
    --no-first-run --virtual-time-budget=5000 "$@" 2>"$work/errors"
}

status=0
for page in "$@"; do
  sed "/<\/body>/{
    r $work/check.html
    N
  }" "$page" >"$work/page.html"
  for width in 1280 720 500; do
    browse --window-size="$width,2000" --dump-dom "file://$work/page.html" >"$work/dom"
    found=$(sed -n 's/^FOUND: //p' "$work/dom")
    if [ "$found" != "nothing wrong" ]; then
      echo "$page at $width pixels: found ${found:-no result}, expected nothing wrong"
      status=1
    fi
  done
  rm -f "$work/page.pdf"
  browse --print-to-pdf="$work/page.pdf" "file://$(realpath "$page")" || true
  if [ "$(head -c 5 "$work/page.pdf" 2>/dev/null)" != "%PDF-" ]; then
    echo "$page: found no print, expected a PDF"
    cat "$work/errors"
    status=1
  fi
done
[ $status -ne 0 ] || echo "$# pages: nothing wrong"
exit $status
