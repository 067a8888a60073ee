// Checkpoints by DeepSpeed's names: a folder for each tag, and the file `latest` with the tag of the last one.
#include <filesystem>

#include "checkpoint/checkpoints_state.h"
#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/folders/manifest.h"

namespace hasten::checkpoint {
namespace {

namespace fs = std::filesystem;

// The tag of rank 0, once those of the others have been compared with it. Collective: yes.
std::string agreed_tag(const Checkpoints::Impl& own, const std::string& tag) {
  const auto tags = gather_texts(own.run.process, tag);
  for (size_t rank = 1; rank < tags.size(); ++rank) {
    if (tags[rank] == tags[0] || own.project.tag_validation == TagValidation::kIgnore) continue;
    const std::string words = text("rank 0 saves a checkpoint by the tag '", tags[0], "', rank ", rank, " by '",
                                   tags[rank], "'; expected one tag");
    if (own.project.tag_validation == TagValidation::kFail)
      throw UsageError(own.origin(), words, ". Leave what is a rank's own out of it.");
    if (own.run.process.is_main_process()) own.run.log.warning(words + ". Rank 0's is used.");
    break;
  }
  return tags[0];
}

void require_folder_name(const Checkpoints::Impl& own, const std::string& tag) {
  if (!tag.empty() && tag != "." && tag != ".." && tag.find('/') == std::string::npos) return;
  throw UsageError(own.origin(), "the tag '", tag, "' is no name of a folder. Use one without '/', as global_step100.");
}

// By a rename, so that it names the old tag or the new one at any time.
void write_latest(const std::string& dir, const std::string& tag, int rank) {
  auto& disk = files::real_disk();
  const std::string file = (fs::path(dir) / "latest").string(), temporary = file + text(".of_rank_", rank);
  files::write_file(disk, temporary, tag);
  disk.rename(temporary, file, files::Rename::kReplace);
  disk.sync_folder(dir);
}

std::string read_latest(const Checkpoints::Impl& own, const std::string& dir) {
  if (const std::string tag = files::latest_tag(dir); !tag.empty()) return tag;
  throw UsageError(own.origin(), "'", dir,
                   "' has no file 'latest' that names a checkpoint. Give the tag, or the folder ",
                   "that save_checkpoint was given.");
}

}  // namespace

std::string Checkpoints::save_checkpoint(const std::string& dir, const std::string& tag, const SaveOptions& options) {
  const std::string own = agreed_tag(*impl_, tag.empty() ? text("global_step", step()) : tag);
  require_folder_name(*impl_, own);
  SaveOptions whole = options;
  whole.background = false;
  whole.skip_if_busy = false;
  save_state((fs::path(dir) / own).string(), whole);
  const auto& process = impl_->run.process;
  Failure failure;
  try {
    if (process.is_local_main_process()) write_latest(dir, own, process.rank());
  } catch (const std::exception& error) {
    failure = {error.what(), true};
  }
  agree(process, failure);
  return own;
}

Loaded Checkpoints::load_checkpoint(const std::string& dir, const std::string& tag, const LoadOptions& options) {
  Failure failure;
  std::string own = tag;
  try {
    if (own.empty()) own = read_latest(*impl_, dir);
    require_folder_name(*impl_, own);
  } catch (const std::exception& error) {
    failure = {error.what(), false};
  }
  own = agree(impl_->run.process, failure, own).front();
  return load_state((fs::path(dir) / own).string(), options);
}

}  // namespace hasten::checkpoint
