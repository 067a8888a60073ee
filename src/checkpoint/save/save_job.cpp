// Writing, reporting, committing; see save_job.h.
#include "checkpoint/save/save_job.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <thread>

#include "checkpoint/save/replica_check.h"
#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/hash.h"
#include "hasten/core/sentence.h"
#include "hasten/files/base/box.h"
#include "hasten/files/disk/durable_folder.h"
#include "hasten/files/python/python_file.h"

namespace hasten::checkpoint {
namespace {

using core::Value;
using Clock = std::chrono::steady_clock;

constexpr size_t kChunk = size_t{8} << 20;
constexpr size_t kDirectBlock = 4096;
// Group's key for the words of a rank that failed, under which a meeting is ended as well (comm/store/generations.h).
constexpr const char* kWordsKey = "hasten/failure";

std::string key_of(const SaveJob& job, const std::string& name) {
  return text("hasten/save/", job.save_id, '/', job.folder, '/', name);
}
// Returns the key of a value that all folders of the save share.
std::string joint_key(const SaveJob& job, const std::string& name) {
  return "hasten/save/" + job.save_id + "/" + name;
}

std::string report_name(int rank) {
  return text(".report-", rank, ".json");
}

// Bytes of a piece as they lie in the file.
size_t piece_bytes(const PieceInfo& piece) {
  return static_cast<size_t>(files::numel_of(piece.box)) * files::element_bytes(piece.info.dtype);
}

void require_space(const SaveJob& job) {
  uint64_t needed = 0;
  for (const auto& file : job.files) needed += file.bytes;
  struct statvfs space = {};
  if (needed == 0 || ::statvfs(job.temporary.c_str(), &space) != 0) return;
  const uint64_t free = static_cast<uint64_t>(space.f_bavail) * space.f_frsize;
  if (free >= needed) return;
  throw DataError(Origin{"checkpoint", job.rank, job.world_size}, job.path, "the save to '", job.path, "' needs ",
                  needed, " bytes on this rank, ", free,
                  " are free. Make room, or keep fewer checkpoints (total_limit).");
}

// Direct writes take whole pages; the file is cut to its size afterwards.
void write_planned(files::Disk& disk, const std::string& path, const PlannedFile& file, const char* buffer) {
  auto out = disk.create(path, true);
  const size_t padded = (file.bytes + kDirectBlock - 1) / kDirectBlock * kDirectBlock;
  for (size_t at = 0; at < padded; at += kChunk) out->write_at(at, buffer + at, std::min(kChunk, padded - at));
  out->truncate(file.bytes);
  out->sync();
  out->close();
}

Value report_of(const SaveJob& job) {
  Value report = Value::map({{"files", Value::list()}, {"parts", job.own_parts}});
  for (size_t i = 0; i < job.files.size(); ++i) {
    const auto& file = job.files[i];
    Value pieces = Value::list();
    for (const auto& [piece, position] : file.pieces) {
      const auto hash = core::xxh3_128(job.buffers[i] + position, piece_bytes((*job.pieces)[piece]));
      pieces.push_back(Value::list({static_cast<int64_t>(piece), static_cast<int64_t>(position), hash.hex()}));
    }
    report["files"].push_back(Value::map({{"name", file.name},
                                          {"bytes", static_cast<int64_t>(file.bytes)},
                                          {"header_xxh3", core::xxh3_128(file.head).hex()},
                                          {"pieces", std::move(pieces)}}));
  }
  if (!job.replicas.empty()) report["replicas"] = Value(job.replicas);
  return report;
}

void write_own(SaveJob& job) {
  if (!job.error.empty()) throw DataError(Origin{"checkpoint", job.rank, job.world_size}, job.path, job.error);
  if (!std::filesystem::is_directory(job.temporary)) {
    throw DataError(Origin{"checkpoint", job.rank, job.world_size}, job.path, "the folder '", job.temporary,
                    "' made by rank 0 is not seen on this rank's host. Save to a file system that all hosts share.");
  }
  require_space(job);
  if (job.device_copy != nullptr) job.device_copy->finish();
  for (size_t i = 0; i < job.files.size(); ++i) {
    write_planned(*job.disk, job.temporary + "/" + job.files[i].name, job.files[i], job.buffers[i]);
  }
  for (const auto& [name, value] : job.python_files) {
    files::write_python_file(*job.disk, job.temporary + "/" + name, value,
                             {.root = std::filesystem::path(name).stem().string()});
  }
  if (job.rank != 0) {
    files::write_file(*job.disk, job.temporary + "/" + report_name(job.rank), report_of(job).to_json());
  }
}

core::Xxh128 hash_from(const std::string& hex) {
  core::Xxh128 hash;
  core::Xxh128::parse(hex, hash);
  return hash;
}

struct Collected {
  files::Manifest& manifest;
  std::map<std::string, size_t> index = {};  // of tensors
};

void add_report(const SaveJob& job, const Value& report, Collected& all) {
  for (const auto& file : report.at("files").as_list()) {
    const size_t number = all.manifest.files.size();
    all.manifest.files.push_back({file.at("name").as_string(), static_cast<uint64_t>(file.at("bytes").as_int()),
                                  hash_from(file.at("header_xxh3").as_string())});
    for (const auto& one : file.at("pieces").as_list()) {
      const auto& piece = (*job.pieces)[static_cast<size_t>(one.as_list()[0].as_int())];
      const auto [found, is_new] = all.index.emplace(piece.info.name, all.manifest.tensors.size());
      if (is_new) all.manifest.tensors.push_back({.info = piece.info, .kind = piece.kind});
      all.manifest.tensors[found->second].pieces.push_back({number, piece.box, hash_from(one.as_list()[2].as_string()),
                                                            static_cast<uint64_t>(one.as_list()[1].as_int())});
    }
  }
  merge_parts(all.manifest.parts, report.at("parts"));
}

// Throws if a rank that takes part may not write any more, because one has ended and the ranks meet anew.
void require_meeting(const SaveJob& job) {
  if (!job.is_of_meeting) return;
  const auto words = job.save->left ? std::optional<std::string>("a rank has ended") : job.board->get(kWordsKey);
  if (!words) return;
  throw CommError(Origin{"checkpoint", job.rank, job.world_size}, "save_state", "the save to '", job.path,
                  "' was cut off: ", inner_words(*words), ". The folder is whole or has not changed.");
}

// Waits for a note that is "ok". Throws the text of any other note.
void await_note(const SaveJob& job, const std::string& key, const std::string& who) {
  const auto until = Clock::now() + job.timeout;
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, std::chrono::milliseconds(20))) {
    const auto message = job.board->get(key);
    if (message && *message == "ok") return;
    if (message)
      throw DataError(Origin{"checkpoint", job.rank, job.world_size}, job.path, who, ": ", inner_words(*message), ".");
    require_meeting(job);
    if (Clock::now() > until) {
      throw DataError(Origin{"checkpoint", job.rank, job.world_size}, job.path, who, " has not written its files of '",
                      job.path, "' within ", job.timeout.count(), " s. Look at its output; the limit is save_timeout.");
    }
    std::this_thread::sleep_for(pause);
  }
}

// Waits until every other rank has written, or throws the error text of any rank.
void await_ranks(const SaveJob& job) {
  for (int rank = 1; rank < job.world_size; ++rank)
    await_note(job, key_of(job, std::to_string(rank)), text("rank ", rank));
}

// Where hosts have folders of their own, all of them are written before any appears.
void await_folders(const SaveJob& job, const std::string& message) {
  if (job.num_folders == 1) return;
  job.board->put(joint_key(job, text("written.", job.folder)), message.empty() ? "ok" : message);
  if (!message.empty()) return;
  for (int folder = 0; folder < job.num_folders; ++folder) {
    await_note(job, joint_key(job, text("written.", folder)), text("host ", folder));
  }
}

// Files that hooks have put into the folder belong to the save: they are synced and checksummed.
void note_other_files(const SaveJob& job, files::Manifest& manifest) {
  Value others = Value::map();
  std::vector<std::string> known;
  for (const auto& file : manifest.files) known.push_back(file.name);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(job.temporary)) {
    if (!entry.is_regular_file()) continue;
    const std::string name = std::filesystem::relative(entry.path(), job.temporary).string();
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    job.disk->open(entry.path())->sync();
    const std::string bytes = core::read_file(entry.path()).value_or("");
    others[name] = Value::map({{"bytes", static_cast<int64_t>(bytes.size())}, {"xxh3", core::xxh3_128(bytes).hex()}});
  }
  if (!others.empty()) manifest.parts["other_files"] = std::move(others);
}

void commit(SaveJob& job) {
  Collected all{job.manifest};
  ReplicaCheck replicas(*job.pieces);
  const Value own = report_of(job);
  add_report(job, own, all);
  replicas.add(0, own);
  await_ranks(job);
  for (int rank = 1; rank < job.world_size; ++rank) {
    const std::string path = job.temporary + "/" + report_name(rank);
    const Value report = Value::parse_json(core::read_file(path).value_or(""), path);
    add_report(job, report, all);
    replicas.add(rank, report);
    job.disk->unlink(path);
  }
  if (const std::string differences = replicas.differences(); !differences.empty()) {
    throw DataError(
        Origin{"checkpoint", job.rank, job.world_size}, job.path, "ranks hold different copies of ", differences,
        ". A rank's memory or a missing synchronisation is to blame. Resume from the checkpoint before it.");
  }
  for (const auto& [name, other] : job.tied) {
    const auto* tensor = job.manifest.find(other);
    if (tensor == nullptr) continue;
    job.manifest.tensors.push_back(
        {.info = {name, tensor->info.dtype, tensor->info.shape}, .kind = tensor->kind, .tied_to = other});
  }
  for (const auto& [name, bytes] : job.indexes) files::write_file(*job.disk, job.temporary + "/" + name, bytes);
  note_other_files(job, job.manifest);
  if (job.has_manifest) {
    files::write_manifest(*job.disk, job.temporary, job.manifest);
  } else {
    files::write_file(*job.disk, job.temporary + "/hasten.json", files::to_json(job.manifest));
  }
  job.disk->sync_folder(job.temporary);
  await_folders(job, "");
  files::commit_folder(*job.disk, job.temporary, job.path, {.is_replaced = is_state_file});
}

void give_up(const SaveJob& job) noexcept {
  try {
    files::remove_tree(*job.disk, job.temporary);
  } catch (const std::exception&) {
    // Left for the next save, which removes folders of dead runs.
  }
}

void finish(SaveJob& job, const std::string& message, bool is_cut_off = false) noexcept {
  try {
    job.save->finish(message, is_cut_off);
  } catch (const std::exception&) {
    // No memory for the words; the handle stays without an outcome.
  }
}

// The store is often rank 0's own, and ends with it: the others read the outcome first, unless they are gone.
void wait_until_seen(const SaveJob& job) noexcept {
  const auto until = Clock::now() + std::chrono::seconds(10);
  try {
    for (int rank = 1; rank < job.world_size; ++rank) {
      while (!job.board->get(key_of(job, text("seen.", rank))) && Clock::now() < until) {
        require_meeting(job);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  } catch (const std::exception&) {
    // A store that does not answer has no reader left. Nor do ranks of a meeting that has ended read it.
  }
}

void run_rank_0(SaveJob& job) {
  std::string message;
  try {
    write_own(job);
    commit(job);
  } catch (const CommError&) {
    give_up(job);
    throw;  // the others find the reason in the store as well, or have no store
  } catch (const std::exception& error) {
    message = error.what();
    give_up(job);
  }
  if (!message.empty()) await_folders(job, message);
  if (job.world_size > 1) {
    job.board->put(key_of(job, "outcome"), message.empty() ? "ok" : message);
    wait_until_seen(job);
  }
  if (message.empty() && job.retire) job.retire(*job.disk);
  finish(job, message);
}

void run_other(SaveJob& job) {
  std::string message = "ok";
  try {
    write_own(job);
  } catch (const std::exception& error) {
    message = error.what();
  }
  job.board->put(key_of(job, std::to_string(job.rank)), message);
  const auto until = Clock::now() + job.timeout + std::chrono::seconds(30);
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, std::chrono::milliseconds(20))) {
    if (const auto outcome = job.board->get(key_of(job, "outcome"))) {
      job.board->put(key_of(job, text("seen.", job.rank)), "yes");
      return finish(job, *outcome == "ok" ? "" : *outcome);
    }
    require_meeting(job);
    if (Clock::now() > until) break;
    std::this_thread::sleep_for(pause);
  }
  finish(job, text("rank 0 has not said whether '", job.path, "' is complete. Look at its output."));
}

}  // namespace

bool is_state_file(const std::string& name) {
  const auto begins = [&](std::string_view with) { return name.rfind(with, 0) == 0; };
  const auto ends = [&](std::string_view with) {
    return name.size() >= with.size() && name.compare(name.size() - with.size(), with.size(), with) == 0;
  };
  if (name == files::kManifestFile || name == "hasten.json" || name == "scaler.pt") return true;
  if ((begins("model") || begins("state")) && (ends(".safetensors") || ends(".safetensors.index.json"))) return true;
  if (begins("pytorch_model") && ends(".bin")) return true;
  const bool is_numbered = begins("optimizer") || begins("scheduler") || begins("sampler") || begins("dl_state_dict");
  return (is_numbered && ends(".bin")) || ((begins("random_states_") || begins("custom_checkpoint_")) && ends(".pkl"));
}

void merge_parts(Value& parts, const Value& own) {
  if (!own.is_map()) return;
  for (const auto& [key, value] : own.as_map()) {
    Value* there = parts.find(key);
    if (there == nullptr) {
      parts[key] = value;
    } else if (there->is_map() && value.is_map()) {
      merge_parts(*there, value);
    }
  }
}

void run_save_job(SaveJob& job) noexcept {
  try {
    job.rank == 0 ? run_rank_0(job) : run_other(job);
  } catch (const std::exception& error) {
    // The store is gone: the launcher or rank 0 has ended. Or the ranks meet anew.
    finish(job, text("the save to '", job.path, "' could not be agreed on: ", inner_words(error.what()), "."),
           job.is_of_meeting);
  }
}

}  // namespace hasten::checkpoint
