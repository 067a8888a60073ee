// SaveJob: the part of a save that runs without the training thread: writing files, the ranks' reports, the commit.
//
// It calls no libtorch operator and no collective, so that it may outlive the training loop. Its data lies in held
// memory, a buffer for each file, exactly as the file will be.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/save/device_copy.h"
#include "checkpoint/save/held_memory.h"
#include "checkpoint/save/save_board.h"
#include "checkpoint/save/save_plan.h"
#include "checkpoint/save/save_state.h"
#include "hasten/core/value.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/files/python/python_value.h"

namespace hasten::checkpoint {

/// A small file beside the tensors, by name.
using SmallFile = std::pair<std::string, std::string>;

struct SaveJob {
  std::shared_ptr<Save::State> save = {};
  std::shared_ptr<SaveBoard> board = {};
  /// Dead ranks are replaced (comm/group/rejoin.h): the end of the meeting that the save began in cuts it off.
  bool is_of_meeting = false;
  files::Disk* disk = &files::real_disk();
  /// This rank's number among those that write the folder, and how many they are.
  int rank = 0, world_size = 1;
  /// Where each host has a folder of its own: the number of this one, and how many there are. None appears unless all
  /// are written.
  int folder = 0, num_folders = 1;
  std::string path = {}, temporary = {}, save_id = {};
  std::chrono::seconds timeout = std::chrono::minutes(30);
  /// Set if the snapshot failed: nothing is written, and the others are notified.
  std::string error = {};

  /// This rank's files and the memory that holds them.
  std::shared_ptr<HeldMemory> memory = {};
  std::vector<PlannedFile> files = {};
  std::vector<char*> buffers = {};
  /// Copies into the buffers that are still under way; null if there are none.
  std::shared_ptr<DeviceCopy> device_copy = {};
  /// Facts of the pieces of `files`, by PlannedPiece::piece.
  std::shared_ptr<const std::vector<PieceInfo>> pieces = {};
  /// Files in torch.save's form (Accelerate's layout), whose tensors are copies.
  std::vector<std::pair<std::string, files::PythonValue>> python_files = {};
  /// Plain values of this rank alone (optimizer state of its own parameters).
  core::Value own_parts = {};
  /// check_replicas: hashes of this rank's copies, in hexadecimal digits, by piece. Empty strings for pieces without
  /// copies.
  std::vector<std::string> replicas = {};

  /// Rank 0: the manifest without files and tensors; all indexes; the steps after the commit.
  files::Manifest manifest = {};
  /// False: Accelerate's layout, where hasten.json has what the manifest has.
  bool has_manifest = true;
  std::vector<SmallFile> indexes = {};
  std::vector<std::pair<std::string, std::string>> tied = {};
  /// Numbers to be removed after the commit are found by this; empty: none.
  std::function<void(files::Disk&)> retire = {};
};

/// Writes this rank's files, reports, and on rank 0 commits; then sets the save's state. Never throws.
/// Collective: the ranks' jobs wait for each other over the board. Blocks: until the outcome is known.
void run_save_job(SaveJob& job) noexcept;

/// Merges the values of single ranks into the manifest's parts. Pure.
void merge_parts(core::Value& parts, const core::Value& own);

/// True for names of files that a save of this room writes, which a save over an old folder replaces.
bool is_state_file(const std::string& name);

}  // namespace hasten::checkpoint
