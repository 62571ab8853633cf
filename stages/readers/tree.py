"""Source trees: which names are text or code, and which folders belong to tools rather than to the author."""

from __future__ import annotations

import os
from typing import Final

#: Folder -> reason to leave it out, in every walk.
SKIPPED_FOLDERS: Final = {
    **dict.fromkeys((".git", ".hg", ".svn", ".bzr", "CVS"), "version-control"),
    **dict.fromkeys(
        ("node_modules", "bower_components", "site-packages", "__pycache__", ".venv", "venv", ".tox", ".nox",
         ".mypy_cache", ".pytest_cache", ".ruff_cache", ".eggs", ".gradle", ".terraform", "__MACOSX"),
        "dependency-folder",
    ),
}  # fmt: skip


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CODE: Final = _names(
    """
    .py .pyi .pyx .pxd .ipy .rb .rake .gemspec .pl .pm .pod .php .lua .tcl .r .jl .m .mm .sh .bash .zsh
    .fish .ksh .bat .cmd .ps1 .psm1 .awk .sed .c .h .cc .cpp .cxx .c++ .hh .hpp .hxx .inl .ipp .cu .cuh .cl
    .go .rs .swift .zig .nim .d .v .vh .sv .svh .vhd .vhdl .java .kt .kts .scala .sc .groovy .gradle .clj
    .cljs .cljc .edn .cs .csx .fs .fsi .fsx .vb .js .mjs .cjs .jsx .ts .mts .cts .tsx .vue .svelte .coffee
    .dart .elm .ex .exs .erl .hrl .hs .lhs .ml .mli .mll .mly .lisp .el .scm .ss .rkt .agda .lean .idr .thy
    .coq .f .f77 .f90 .f95 .f03 .f08 .for .ada .adb .ads .pas .pp .asm .s .nasm .ll .mlir .wat .cob .cbl
    .sol .move .cairo .proto .thrift .graphql .gql .sql .ddl .psql .cmake .mk .mak .ninja .bzl .bazel .build
    .nix .dhall .tf .hcl .glsl .vert .frag .hlsl .metal .wgsl .sas .do .stan .mod .gms .css .scss .sass
    .less .styl .tex .sty .cls .bib .org .adoc .asciidoc .textile .mediawiki .typ .po .pot .vim .applescript
    .ahk .gd .hx .pro .qml .cr .pony .raku .factor .forth .4th .apl .j .k .q
    """
)
_CODE_NAMES: Final = _names(
    """
    makefile gnumakefile dockerfile containerfile jenkinsfile vagrantfile rakefile gemfile podfile brewfile
    procfile justfile cmakelists.txt build workspace sconstruct sconscript configure license licence copying
    notice readme changelog changes authors contributors install news todo
    """
)
#: Text of a source tree that is data or markup elsewhere; only `format: tree` takes it.
_TREE_ONLY: Final = _names(
    """
    .txt .text .md .markdown .mdown .rst .json .json5 .jsonc .yaml .yml .toml .ini .cfg .conf .properties
    .xml .xsd .xsl .xslt .html .htm .xhtml .svg .csv .tsv .jsp .asp .aspx .erb .ejs .hbs .mustache .jinja
    .jinja2 .j2 .tmpl .template .in .am .ac .m4 .spec .desktop .service .csproj .sln .plist .diff .patch
    .ipynb .tla .g4 .y .l
    """
)
_BINARY: Final = _names(
    """
    .png .jpg .jpeg .gif .bmp .ico .webp .tif .tiff .psd .heic .avif .mp3 .mp4 .m4a .wav .flac .ogg .avi
    .mov .mkv .webm .pdf .ps .eps .djvu .doc .docx .xls .xlsx .ppt .pptx .odt .ods .odp .epub .mobi .woff
    .woff2 .ttf .otf .eot .zip .tar .tgz .tbz2 .txz .7z .rar .jar .war .whl .egg .deb .rpm .apk .dmg .iso
    .img .exe .dll .so .dylib .a .o .obj .lib .pdb .class .pyc .pyo .pyd .wasm .bin .dat .db .sqlite
    .sqlite3 .npy .npz .pkl .pickle .h5 .hdf5 .pt .pth .ckpt .safetensors .onnx .tflite .gguf
    """
)


def is_code(name: str) -> bool:
    """Whether a file name is one of program text or of its documentation in markup that is never data."""
    lower = name.lower()
    return os.path.splitext(lower)[1] in _CODE or lower in _CODE_NAMES


def is_tree_text(name: str) -> bool:
    """Whether `format: tree` reads a file of this name."""
    return is_code(name) or os.path.splitext(name.lower())[1] in _TREE_ONLY


def is_binary_name(name: str) -> bool:
    """Whether the suffix is one of pictures, archives, compiled code and the like."""
    return os.path.splitext(name.lower())[1] in _BINARY
