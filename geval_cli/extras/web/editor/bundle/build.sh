#!/usr/bin/env bash
# Build static/vendor/codemirror.js anew from the versions in package.json, with npm and esbuild.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cp "$here/package.json" "$here/entry.js" "$work/"
cd "$work"
npm install --no-audit --no-fund --no-package-lock --ignore-scripts --silent
"$(find node_modules/@esbuild -path '*/bin/esbuild')" entry.js --bundle --format=esm --minify --target=es2022 \
  --legal-comments=none --outfile=codemirror.js
cp codemirror.js "$here/../../static/vendor/codemirror.js"
{
  echo "What codemirror.js holds, with the licences of each part. Rebuilt by editor/bundle/build.sh."
  node -p 'Object.entries(require("./package.json").dependencies).map((entry) => entry.join(" ")).join("\n")' |
    while read -r name version; do
      printf '\n%s\n%s %s\n%s\n\n' "$(printf '=%.0s' {1..80})" "$name" "$version" "$(printf '=%.0s' {1..80})"
      cat "node_modules/$name"/LICENSE*
    done
} > "$here/../../static/vendor/LICENSES.txt"
