"""huggingface_hub on the server argv[1] and the cache argv[2] that hasten uses: `ours` of it is there, `theirs` comes now."""
import pathlib
import sys

from huggingface_hub import hf_hub_download, scan_cache_dir

url, cache = sys.argv[1:3]
options = {"repo_id": "org/name", "cache_dir": cache, "endpoint": url}
# Without the network: the file that hasten has downloaded.
print("ours", hf_hub_download(filename="ours.bin", local_files_only=True, **options))
# With it: the entity tag is that of the file which is there, so nothing is downloaded again.
print("again", hf_hub_download(filename="ours.bin", **options))
print("theirs", hf_hub_download(filename="sub/theirs.bin", **options))
report = scan_cache_dir(pathlib.Path(cache))
for warning in report.warnings:
    sys.exit(f"the cache is damaged: {warning}")
print("files", sorted(file.file_name for repo in report.repos for revision in repo.revisions for file in revision.files))
