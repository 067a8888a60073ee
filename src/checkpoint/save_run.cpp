// The training thread's part of a save: agree, plan, copy; then the writer goes on (save_job.h).
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <torch/version.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <unordered_map>

#include "checkpoint/accelerate_folder.h"
#include "checkpoint/impl.h"
#include "checkpoint/writer_thread.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/core/error.h"
#include "hasten/core/hash.h"
#include "hasten/core/version.h"
#include "hasten/files/box.h"
#include "hasten/files/retention.h"
#include "hasten/parallel/shard/sharding.h"

namespace hasten::checkpoint {
namespace {

using core::Value;

// Where a save goes; rank 0 decides, the others hear of it.
struct Target {
  std::string path = {}, temporary = {}, save_id = {};
  int64_t number = 0;
};

// Rank 0: the next name, a temporary folder. Throws what the folder cannot be made for.
Target make_target(Checkpoints::Impl& own, const std::string& given) {
  Target target;
  std::string path = given;
  target.number = own.iteration;
  if (given.empty()) {
    if (!own.project.automatic_checkpoint_naming) {
      throw UsageError(own.origin(), "save_state without a path; expected one, or automatic_checkpoint_naming with a project_dir.");
    }
    const std::string folder = own.checkpoints_folder();
    const auto numbers = checkpoint_numbers(folder);
    if (!numbers.empty()) target.number = std::max(target.number, numbers.back() + 1);
    path = folder + text("/checkpoint_", target.number);
    std::filesystem::create_directories(folder);
    if (own.lock == nullptr) own.lock = std::make_unique<files::FolderLock>(folder);
    files::remove_leftovers(files::real_disk(), folder);
  }
  target.path = files::resolved_folder(path);
  target.save_id = files::new_save_id();
  target.temporary = files::make_temporary_folder(files::real_disk(), target.path, target.save_id);
  return target;
}

void remove_target(const Checkpoints::Impl& own, const Target& target) noexcept {
  if (own.run.process.rank() != 0 || target.temporary.empty()) return;
  try {
    files::remove_tree(files::real_disk(), target.temporary);
  } catch (const std::exception&) {
    // It counts for nothing, and a later save removes it.
  }
}

struct Record {
  std::string error = {};
  std::string given = {};
  bool busy = false;
  std::string hash = {};
  Target target = {};
};

Value to_value(const Record& record) {
  return Value::map({{"error", record.error}, {"given", record.given}, {"busy", record.busy}, {"hash", record.hash},
                     {"path", record.target.path}, {"temporary", record.target.temporary},
                     {"save_id", record.target.save_id}, {"number", record.target.number}});
}

Record record_of(const Value& value) {
  return {value.at("error").as_string(), value.at("given").as_string(), value.at("busy").as_bool(),
          value.at("hash").as_string(),
          {value.at("path").as_string(), value.at("temporary").as_string(), value.at("save_id").as_string(),
           value.at("number").as_int()}};
}

// One small message; the same answer, or the same error, on all ranks.
std::vector<Record> agree(const Checkpoints::Impl& own, const Record& mine) {
  std::vector<Record> all;
  for (const auto& one : gather_texts(own.run.process, to_value(mine).to_json())) {
    all.push_back(record_of(Value::parse_json(one)));
  }
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].error.empty()) {
      remove_target(own, all[0].target);
      throw UsageError(own.origin(), all.size() == 1 ? std::string() : text("rank ", rank, ": "), all[rank].error);
    }
    if (all[rank].given != all[0].given) {
      remove_target(own, all[0].target);
      throw UsageError(own.origin(), "rank 0 saves to '", all[0].given, "', rank ", rank, " to '", all[rank].given,
                       "'; expected one path. Give all ranks the same.");
    }
  }
  return all;
}

// Pieces of all ranks: what every rank has once, what one owns once, however many list it.
std::vector<PieceInfo> join_pieces(const Checkpoints::Impl& own, const std::vector<std::vector<PieceInfo>>& by_rank) {
  std::vector<PieceInfo> joint;
  std::unordered_map<std::string, size_t> known;
  const auto key = [](const PieceInfo& piece) { return piece.info.name + files::describe(piece.box); };
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const auto& piece : by_rank[rank]) {
      const auto [found, is_new] = known.emplace(key(piece), joint.size());
      if (!is_new) continue;
      if (rank > 0 && piece.rank == kEveryRank) {
        throw UsageError(own.origin(), "rank ", rank, " has '", piece.info.name, "', rank 0 has it not. Give all ranks the same "
                         "model, optimizers and groups.");
      }
      joint.push_back(piece);
    }
  }
  return joint;
}

std::string hash_of(const Capture& capture) {
  return core::xxh3_128(to_value(capture.infos).to_json()).hex();
}

// A new plan where any rank's pieces have changed. Collective: only then.
void update_plan(Checkpoints::Impl& own, const Capture& capture, const std::vector<Record>& records) {
  std::string all;
  for (const auto& record : records) all += record.hash;
  if (all == own.plan_hash) return;
  std::vector<std::vector<PieceInfo>> by_rank;
  if (records.size() == 1) {
    by_rank.push_back(capture.infos);
  } else {
    for (const auto& one : gather_texts(own.run.process, to_value(capture.infos).to_json())) {
      by_rank.push_back(pieces_of(Value::parse_json(one)));
    }
  }
  auto joint = join_pieces(own, by_rank);
  own.plan = plan_save(joint, own.run.process.world_size());
  own.joint = std::make_shared<const std::vector<PieceInfo>>(std::move(joint));
  own.plan_hash = std::move(all);
}

constexpr size_t kParallelBytes = size_t{1} << 20;

void copy_bytes(char* to, const char* from, size_t bytes) {
  if (bytes < kParallelBytes) {
    std::memcpy(to, from, bytes);
    return;
  }
  at::parallel_for(0, static_cast<int64_t>(bytes), kParallelBytes, [&](int64_t begin, int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

void copy_tensor(char* to, const at::Tensor& tensor) {
  if (tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) {
    copy_bytes(to, static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
    return;
  }
  at::from_blob(to, tensor.sizes(), tensor.options().device(at::kCPU).requires_grad(false)).copy_(tensor.detach());
}

// This rank's files as they will lie on disk, in held memory. Here ends the pause.
void snapshot(Checkpoints::Impl& own, const Capture& capture, SaveJob& job) {
  const at::NoGradGuard no_grad;
  std::unordered_map<std::string, size_t> where;
  for (size_t i = 0; i < capture.infos.size(); ++i) {
    where.emplace(capture.infos[i].info.name + files::describe(capture.infos[i].box), i);
  }
  std::vector<size_t> sizes;
  for (const auto& file : own.plan.files) {
    if (file.writer != job.rank) continue;
    job.files.push_back(file);
    sizes.push_back(file.bytes);
  }
  job.buffers = own.memory->buffers(sizes);
  job.memory = own.memory;
  job.pieces = own.joint;
  for (size_t i = 0; i < job.files.size(); ++i) {
    const auto& file = job.files[i];
    std::memcpy(job.buffers[i], file.head.data(), file.head.size());
    for (const auto& [piece, position] : file.pieces) {
      const auto& info = (*own.joint)[piece];
      const auto found = where.find(info.info.name + files::describe(info.box));
      if (found == where.end()) throw InternalError(own.origin(), "the plan holds '", info.info.name, "', which this rank lacks");
      copy_tensor(job.buffers[i] + position, capture.data[found->second]);
    }
  }
}

files::Manifest manifest_of(const Checkpoints::Impl& own, const Target& target, const Capture& capture) {
  files::Manifest manifest;
  manifest.writer = text("hasten ", version());
  manifest.libtorch = TORCH_VERSION;
  manifest.save_id = target.save_id;
  manifest.time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  manifest.world_size = own.run.process.world_size();
  const auto& sharding = own.run.sharding;
  manifest.strategy = manifest.world_size == 1 ? "single"
                      : sharding == nullptr    ? "ddp"
                                               : text("zero-", static_cast<int>(sharding->options().stage));
  manifest.step = own.counter->steps();
  manifest.iteration = target.number;
  manifest.parts = capture.parts;
  return manifest;
}

std::function<void(files::Disk&)> retire_function(const Checkpoints::Impl& own, bool automatic) {
  if (!automatic || !own.project.total_limit) return {};
  const files::Retention retention{own.project.total_limit, own.project.keep_every.value_or(0)};
  return [folder = own.checkpoints_folder(), retention, log = own.run.log](files::Disk& disk) {
    std::vector<int64_t> complete;
    for (const auto& found : files::find_checkpoints(folder)) {
      if (found.problem.empty()) complete.push_back(found.number);
    }
    for (const int64_t number : files::to_delete(complete, retention)) {
      const std::string path = folder + text("/checkpoint_", number);
      try {
        files::remove_durably(disk, path);
      } catch (const std::exception& error) {
        log.warning(text("'", path, "' is beyond total_limit and could not be removed: ", error.what()));
      }
    }
  };
}

void run_hooks(const Checkpoints::Impl& own, std::vector<ModelEntry>& models, const std::string& folder) {
  for (const auto& [id, hook] : own.save_hooks) hook(models, folder);
}

// Models and their tensors, after the hooks.
std::vector<ModelEntry> models_to_save(const Checkpoints::Impl& own, const std::string& folder) {
  auto models = models_of(own.run);
  for (auto& model : models) model.weights = state_dict(*model.module);
  if (!own.save_hooks.empty()) run_hooks(own, models, folder);
  return models;
}

struct Prepared {
  Target target;
  Capture capture;
  std::vector<Record> records;
  std::vector<ModelEntry> models;
};

// With hooks the folder must be known on all ranks before anything is captured, so that costs one more message.
Prepared prepare(Checkpoints::Impl& own, const std::string& path, bool skip_if_busy) {
  Prepared out;
  Record mine{.given = path};
  mine.busy = skip_if_busy && own.current != nullptr && !Save(own.current).done();
  try {
    if (own.run.process.rank() == 0) mine.target = make_target(own, path);
  } catch (const std::exception& error) {
    mine.error = error.what();
  }
  const bool hooked = !own.save_hooks.empty();
  if (hooked) {
    out.records = agree(own, mine);
    out.target = out.records[0].target;
  }
  try {
    if (mine.error.empty()) {
      out.models = models_to_save(own, out.target.temporary);
      out.capture = capture_state(own.run, out.models);
      mine.hash = hash_of(out.capture);
    }
  } catch (const std::exception& error) {
    mine.error = error.what();
  }
  out.records = agree(own, mine);
  out.target = out.records[0].target;
  return out;
}

}  // namespace

Save save_run(Checkpoints::Impl& own, const std::string& path, const SaveOptions& options) {
  const bool automatic = path.empty();
  const bool background = options.background.value_or(automatic);
  if (!options.skip_if_busy) own.settle_current();
  auto prepared = prepare(own, path, options.skip_if_busy);
  for (const auto& record : prepared.records) {
    if (!record.busy) continue;
    remove_target(own, prepared.target);
    return Save();
  }
  if (options.skip_if_busy) own.settle_current();
  auto job = std::make_shared<SaveJob>();
  job->save = std::make_shared<Save::State>();
  job->save->path = prepared.target.path;
  job->board = own.board;
  job->rank = own.run.process.rank();
  job->world_size = own.run.process.world_size();
  job->path = prepared.target.path;
  job->temporary = prepared.target.temporary;
  job->save_id = prepared.target.save_id;
  job->timeout = own.project.save_timeout;
  if (options.layout == Layout::kAccelerate) {
    fill_accelerate_job(own, prepared.models, options, *job);
  } else {
    update_plan(own, prepared.capture, prepared.records);
    try {
      snapshot(own, prepared.capture, *job);
    } catch (const std::bad_alloc&) {
      job->error = "there is no memory for the copy of the state. Save without other large allocations, or with more ranks.";
    }
    job->own_parts = std::move(prepared.capture.own_parts);
    if (job->rank == 0) {
      job->manifest = manifest_of(own, prepared.target, prepared.capture);
      job->tied = prepared.capture.tied;
      job->indexes = own.plan.indexes;
    }
  }
  if (job->rank == 0) job->retire = retire_function(own, automatic);
  own.iteration = prepared.target.number + 1;
  own.current = job->save;
  if (background) {
    start_writer(job);
  } else {
    run_save_job(*job);
    Save(job->save).wait();
  }
  return Save(job->save);
}

}  // namespace hasten::checkpoint
