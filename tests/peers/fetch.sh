#!/usr/bin/env bash
# fetch.sh DIR: lays torch 2.6's own test files (BSD licence) into DIR/test, out of Debian's source
# package: the wheel has none. They are run where they lie; nothing of them goes into the project.
# Needed: apt-get, with one of Debian's mirrors among its sources. The package has 78 MB.
set -euo pipefail
mkdir -p "$1" && cd "$1"
if [ -d test/dynamo ]; then exit 0; fi
# Debian's own images name a snapshot that is out of reach in a comment.
sources=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -v '^ *#' || true)
mirror=$(grep -oE 'https?://[^ ]+/debian/?' <<<"$sources" | head -n 1 || true)
mkdir -p apt/lists/partial apt/cache/archives/partial
key=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb-src [signed-by=$key] ${mirror:-http://deb.debian.org/debian} trixie main" > apt/sources.list
apt=(apt-get -qq -o "Dir::Etc::sourcelist=$PWD/apt/sources.list" -o Dir::Etc::sourceparts=/nonexistent
     -o "Dir::State::lists=$PWD/apt/lists" -o "Dir::Cache=$PWD/apt/cache")
"${apt[@]}" update
"${apt[@]}" source --download-only pytorch
tar xJf pytorch_*.orig.tar.xz --wildcards '*/test/*.py' --strip-components=1
# Overloads that torch has dropped since, and settings for another pytest.
sed -i -E '/^ *aten\.\w+\.\w*([Dd]im_?[Nn]ame|names)\w*,$/d' test/export/testing.py
rm -f test/conftest.py
