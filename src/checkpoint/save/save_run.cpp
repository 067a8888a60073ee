// The training thread's part of a save: agree, plan, copy; then the writer goes on (save_job.h).
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <unordered_map>

#include "checkpoint/accelerate_folder.h"
#include "checkpoint/checkpoints_state.h"
#include "checkpoint/parts.h"
#include "checkpoint/save/snapshot.h"
#include "checkpoint/save/writer_thread.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/comm/group/rejoin.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "hasten/core/hash.h"
#include "hasten/core/sentence.h"
#include "hasten/core/version.h"
#include "hasten/files/base/box.h"
#include "hasten/files/folders/retention.h"
#include "hasten/interception/interceptor.h"
#include "hasten/parallel/ddp/distributed_models.h"
#include "hasten/parallel/shard/sharding.h"

namespace hasten::checkpoint {
namespace {

using core::Value;

// The folder of a save. Rank 0 chooses it and broadcasts it.
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
      throw UsageError(own.origin(),
                       "save_state without a path; expected one, or automatic_checkpoint_naming with a project_dir.");
    }
    const std::string folder = own.checkpoints_folder();
    const auto numbers = checkpoint_numbers(folder);
    if (!own.is_numbered && !numbers.empty()) target.number = std::max(target.number, numbers.back() + 1);
    path = folder + text("/checkpoint_", target.number);
    std::filesystem::create_directories(folder);
    if (own.lock == nullptr) own.lock = std::make_unique<files::FolderLock>(folder);
    files::remove_leftovers(files::real_disk(), folder);
  }
  target.path = files::resolved_folder(path);
  target.save_id = files::new_save_id();
  target.temporary = files::make_temporary_folder(files::real_disk(), target.path, target.save_id);
  own.leftover = target.temporary;
  return target;
}

void remove_quietly(const std::string& folder) noexcept {
  try {
    files::remove_tree(files::real_disk(), folder);
  } catch (const std::exception&) {
    // It counts for nothing, and a later save removes it.
  }
}

void remove_target(const Checkpoints::Impl& own, const Target& target) noexcept {
  if (own.run.process.rank() == 0 && !target.temporary.empty()) remove_quietly(target.temporary);
}

struct Record {
  std::string error = {};
  /// The path given, and the options that ranks must share.
  std::string given = {};
  bool busy = false;
  std::string hash = {};
  Target target = {};
};

Value to_value(const Record& record) {
  return Value::map({{"error", record.error},
                     {"given", record.given},
                     {"busy", record.busy},
                     {"hash", record.hash},
                     {"path", record.target.path},
                     {"temporary", record.target.temporary},
                     {"save_id", record.target.save_id},
                     {"number", record.target.number}});
}

Record record_of(const Value& value) {
  return {value.at("error").as_string(),
          value.at("given").as_string(),
          value.at("busy").as_bool(),
          value.at("hash").as_string(),
          {value.at("path").as_string(), value.at("temporary").as_string(), value.at("save_id").as_string(),
           value.at("number").as_int()}};
}

// Sends one small message. All ranks get the same answer, or the same error.
std::vector<Record> agree(const Checkpoints::Impl& own, const Record& mine) {
  std::vector<Record> all;
  for (const auto& one : gather_texts(own.run.process, to_value(mine).to_json())) {
    all.push_back(record_of(Value::parse_json(one)));
  }
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].error.empty()) {
      remove_target(own, all[0].target);
      throw UsageError(own.origin(), all.size() == 1 ? std::string() : text("rank ", rank, ": "),
                       inner_sentence(all[rank].error));
    }
    if (all[rank].given != all[0].given) {
      remove_target(own, all[0].target);
      throw UsageError(own.origin(), "rank 0 saves to '", all[0].given, "', rank ", rank, " to '", all[rank].given,
                       "'; expected one path and equal options. Give all ranks the same.");
    }
  }
  return all;
}

// What several ranks have copies of goes to the one of them with the least so far.
void choose_holders(std::vector<PieceInfo>& joint, const std::vector<std::vector<int>>& holders, size_t num_ranks) {
  std::vector<int64_t> load(num_ranks);
  for (size_t i = 0; i < joint.size(); ++i) {
    if (joint[i].rank == kEveryRank) continue;
    for (const int rank : holders[i]) {
      if (load.at(static_cast<size_t>(rank)) < load.at(static_cast<size_t>(joint[i].rank))) joint[i].rank = rank;
    }
    load.at(static_cast<size_t>(joint[i].rank)) +=
        files::numel_of(joint[i].box) * static_cast<int64_t>(files::element_bytes(joint[i].info.dtype));
  }
}

// Pieces of all ranks: what every rank has once, what one or some own once, however many list it.
std::vector<PieceInfo> join_pieces(Checkpoints::Impl& own, const std::vector<std::vector<PieceInfo>>& by_rank) {
  std::vector<PieceInfo> joint;
  std::vector<std::vector<int>> holders;
  std::unordered_map<std::string, size_t> known;
  const auto key = [](const PieceInfo& piece) { return piece.info.name + files::describe(piece.box); };
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const auto& piece : by_rank[rank]) {
      const auto [found, is_new] = known.emplace(key(piece), joint.size());
      if (!is_new) {
        holders[found->second].push_back(piece.rank);
        continue;
      }
      if (rank > 0 && piece.rank == kEveryRank) {
        throw UsageError(own.origin(), "rank ", rank, " has '", piece.info.name,
                         "', rank 0 has it not. Give all ranks the same "
                         "model, optimizers and groups.");
      }
      joint.push_back(piece);
      holders.emplace_back();
    }
  }
  choose_holders(joint, holders, by_rank.size());
  own.has_copies.assign(joint.size(), false);
  for (size_t i = 0; i < joint.size(); ++i) own.has_copies[i] = joint[i].rank != kEveryRank && !holders[i].empty();
  return joint;
}

// Returns a hash of all that the plan depends on.
std::string hash_of(const Capture& capture) {
  std::string all;
  const auto add = [&](const std::vector<int64_t>& numbers) {
    for (const int64_t number : numbers) all.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  for (const auto& piece : capture.infos) {
    all += text(piece.info.name, '\n', piece.kind, '\n', static_cast<int>(piece.info.dtype), ' ', piece.rank, ' ',
                piece.info.shape.size(), '\n');
    add(piece.info.shape);
    add(piece.box.offset);
    add(piece.box.size);
  }
  return core::xxh3_128(all).hex();
}

// A new plan where any rank's pieces have changed. Collective: only then.
void update_plan(Checkpoints::Impl& own, const Capture& capture, const std::vector<Record>& records,
                 const Writers& writers) {
  std::string all;
  for (const auto& record : records) all += record.hash + ' ';
  for (const int rank : writers.ranks) all += text(rank, ' ');
  if (all == own.plan_hash) return;
  std::vector<std::vector<PieceInfo>> by_rank;
  if (records.size() == 1) {
    by_rank.push_back(capture.infos);
  } else {
    const auto texts = gather_texts(own.run.process, to_value(capture.infos).to_json());
    for (const int rank : writers.ranks)
      by_rank.push_back(pieces_of(Value::parse_json(texts[static_cast<size_t>(rank)])));
  }
  auto joint = join_pieces(own, by_rank);
  own.plan = plan_save(joint, static_cast<int>(writers.ranks.size()));
  own.joint = std::make_shared<const std::vector<PieceInfo>>(std::move(joint));
  own.plan_hash = std::move(all);
}

files::Manifest manifest_of(const Checkpoints::Impl& own, const Target& target, const Capture& capture) {
  files::Manifest manifest;
  manifest.writer = text("hasten ", version());
  manifest.libtorch = TORCH_VERSION;
  manifest.save_id = target.save_id;
  manifest.time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  manifest.world_size = own.run.process.world_size();
  for (const int node : own.node_of_rank) {
    if (const std::string host = text("node ", node);
        std::find(manifest.hosts.begin(), manifest.hosts.end(), host) == manifest.hosts.end())
      manifest.hosts.push_back(host);
  }
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
        log.warning(
            text("'", path, "' is beyond total_limit and could not be removed: ", inner_words(error.what()), "."));
      }
    }
  };
}

void run_hooks(const Checkpoints::Impl& own, std::vector<ModelEntry>& models, const std::string& folder) {
  for (const auto& [id, hook] : own.save_hooks) hook(models, folder);
}

// Models and their tensors, after the hooks. Collective: with cut models in Accelerate's layout.
std::vector<ModelEntry> models_to_save(const Checkpoints::Impl& own, const std::string& folder, Layout layout) {
  auto models = models_of(own.run);
  for (auto& model : models) {
    if (layout == Layout::kAccelerate) {
      model.weights = state_dict(*model.module);
      continue;
    }
    model.weights = parts_dict(*model.module);
    for (const auto& [name, tensor] : StateDict(model.weights)) {
      if (!is_part(tensor)) continue;
      const interception::PassScope pass;
      model.weights.set(name, tensor.detach());
    }
  }
  if (!own.save_hooks.empty()) run_hooks(own, models, folder);
  return models;
}

struct Prepared {
  Target target;
  Writers writers;
  Capture capture;
  std::vector<Record> records;
  std::vector<ModelEntry> models;
};

// Where this rank looks for rank 0's folder: with automatic naming in its own project_dir.
Target seen_from_here(const Checkpoints::Impl& own, Target target, bool automatic) {
  if (!automatic || !own.has_several_hosts()) return target;
  const auto here = [&](const std::string& path) {
    return own.checkpoints_folder() + "/" + std::filesystem::path(path).filename().string();
  };
  target.path = here(target.path);
  target.temporary = here(target.temporary);
  return target;
}

// Network file systems show a new folder late.
bool is_seen(const std::string& folder, std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (!std::filesystem::is_directory(folder)) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

Writers all_ranks(const Checkpoints::Impl& own) {
  Writers writers;
  for (int rank = 0; rank < own.run.process.world_size(); ++rank) writers.ranks.push_back(rank);
  writers.index = own.run.process.rank();
  return writers;
}

// The ranks of each host write a folder of their own. Its first rank makes it. Collective: yes.
Writers host_writers(Checkpoints::Impl& own, const Target& target) {
  const auto& nodes = own.nodes();
  Writers writers;
  std::vector<int> order;  // nodes by their first rank
  for (int rank = 0; rank < own.run.process.world_size(); ++rank) {
    const int node = nodes[static_cast<size_t>(rank)];
    if (std::find(order.begin(), order.end(), node) == order.end()) order.push_back(node);
    if (node != own.run.process.node_rank()) continue;
    if (rank == own.run.process.rank()) writers.index = static_cast<int>(writers.ranks.size());
    writers.ranks.push_back(rank);
  }
  writers.num_folders = static_cast<int>(order.size());
  writers.folder = static_cast<int>(std::find(order.begin(), order.end(), own.run.process.node_rank()) - order.begin());
  Failure failure;
  try {
    if (own.run.sharding != nullptr || !own.run.components->empty() || has_parts(own.run)) {
      std::vector<std::string> names;
      for (const int node : order) names.push_back(text("node ", node));
      throw UsageError(own.origin(), "'", target.path, "' is not seen by all hosts (", hasten::join(names),
                       "), and the state is split over "
                       "them. Save to a file system that all hosts share.");
    }
    if (writers.index == 0 && writers.folder != 0) {
      if (const auto parent = std::filesystem::path(target.path).parent_path(); !parent.empty()) {
        std::filesystem::create_directories(parent);
        files::remove_leftovers(files::real_disk(), parent.string());
      }
      files::make_temporary_folder(files::real_disk(), target.path, target.save_id);
    }
  } catch (const std::exception& error) {
    failure = {error.what(), false};
  }
  try {
    agree(own.run.process, failure);
  } catch (const Error&) {
    if (writers.index == 0) remove_quietly(target.temporary);
    throw;
  }
  return writers;
}

// Returns a single folder if all hosts find that of rank 0, else a folder for each host. Found out once for each
// parent. Collective: yes.
Writers find_writers(Checkpoints::Impl& own, const Target& target) {
  if (!own.has_several_hosts()) return all_ranks(own);
  const auto& nodes = own.nodes();
  const std::string parent = std::filesystem::path(target.path).parent_path().string();
  const auto known = own.is_shared.find(parent);
  bool shared = known != own.is_shared.end() && known->second;
  if (known == own.is_shared.end()) {
    const bool looks = own.run.process.node_rank() != nodes[0] && own.run.process.is_local_main_process();
    const auto answers = gather_texts(
        own.run.process, !looks || is_seen(target.temporary, own.project.shared_folder_timeout) ? "yes" : "no");
    shared = std::all_of(answers.begin(), answers.end(), [](const auto& answer) { return answer == "yes"; });
    own.is_shared[parent] = shared;
    if (!shared) {
      own.run.log.info(text("'", parent, "' is not one folder for all hosts: each host saves into its own"));
    }
  }
  return shared ? all_ranks(own) : host_writers(own, target);
}

// With hooks, and on several hosts, the folder must be known on all ranks before anything is captured, so that costs
// one more message.
Prepared prepare(Checkpoints::Impl& own, const std::string& path, const SaveOptions& options) {
  Prepared out;
  const bool skip_if_busy = options.skip_if_busy;
  Record mine{.given = path};
  if (options.layout != Layout::kHasten)
    mine.given += options.safe_serialization ? " (accelerate)" : " (accelerate, pickled)";
  if (options.check_replicas) mine.given += " (check_replicas)";
  mine.busy = skip_if_busy && own.current != nullptr && !Save(own.current).done();
  try {
    if (own.run.process.rank() == 0) mine.target = make_target(own, path);
  } catch (const std::exception& error) {
    mine.error = error.what();
  }
  // Gathering whole weights is collective, so that all ranks come to it or none.
  const bool gathers = options.layout == Layout::kAccelerate && has_parts(own.run);
  const bool early = !own.save_hooks.empty() || own.has_several_hosts() || gathers;
  out.writers = all_ranks(own);
  if (early) {
    out.records = agree(own, mine);
    out.target = seen_from_here(own, out.records[0].target, path.empty());
    own.leftover = out.target.temporary;
    if (options.layout == Layout::kHasten) out.writers = find_writers(own, out.target);
  }
  try {
    if (mine.error.empty()) {
      out.models = models_to_save(own, out.target.temporary, options.layout);
      out.capture = capture_state(own.run, out.models, out.writers.index);
      mine.hash = hash_of(out.capture);
    }
  } catch (const std::exception& error) {
    mine.error = error.what();
  }
  out.records = agree(own, mine);
  out.target = seen_from_here(own, out.records[0].target, path.empty());
  own.leftover = out.target.temporary;
  return out;
}

}  // namespace

namespace {

// Once: a program that prepares nothing saves nothing but random numbers, as Accelerate does.
void warn_of_nothing(Checkpoints::Impl& own) {
  if (own.has_warned_of_nothing || !own.save_hooks.empty() || !own.run.components->empty()) return;
  if (own.run.models != nullptr && !own.run.models->all().empty()) return;
  const auto objects = own.run.registry->all();
  const bool is_all_hastens = std::all_of(objects.begin(), objects.end(), [](const auto& one) {
    return one.kind == training::StateKind::kScaler || one.kind == training::StateKind::kTrackers;
  });
  if (!is_all_hastens) return;
  own.has_warned_of_nothing = true;
  own.run.log.warning(
      "save_state saves the state of random numbers alone: no model, optimizer, scheduler or loader is prepared, and "
      "no object is registered. Call prepare first, and keep the handles that it gives.");
}

}  // namespace

Save save_run(Checkpoints::Impl& own, const std::string& path, const SaveOptions& options) {
  const comm::Purpose purpose("save_state");
  if (comm::stands_in(own.run.process.group())) {
    throw UsageError(own.origin(),
                     "save_state before the ranks have met: under hasten launch --survive they do in "
                     "accelerator.survive. Save inside it or behind it.");
  }
  // Each rank saves its part of what all should have alike. check_replicas looks at all of it.
  if (own.run.models != nullptr && !options.check_replicas) {
    for (const auto& model : own.run.models->all()) model->check_parameters();
  }
  warn_of_nothing(own);
  const bool automatic = path.empty();
  const bool background = options.background.value_or(automatic);
  if (!options.skip_if_busy) own.settle_current();
  auto prepared = prepare(own, path, options);
  for (const auto& record : prepared.records) {
    if (!record.busy) continue;
    remove_target(own, prepared.target);
    return Save();
  }
  if (options.skip_if_busy) own.settle_current();
  auto job = std::make_shared<SaveJob>();
  job->save = std::make_shared<Save::State>();
  job->save->path = prepared.target.path;
  // Notes are a meeting's: a rank that is replaced finds no others.
  job->is_of_meeting = own.meetings != nullptr;
  job->board = job->is_of_meeting ? std::make_shared<SaveBoard>(own.run.process.group().store()) : own.board;
  job->rank = prepared.writers.index;
  job->world_size = static_cast<int>(prepared.writers.ranks.size());
  job->folder = prepared.writers.folder;
  job->num_folders = prepared.writers.num_folders;
  job->path = prepared.target.path;
  job->temporary = prepared.target.temporary;
  job->save_id = prepared.target.save_id;
  job->timeout = own.project.save_timeout;
  if (options.layout == Layout::kAccelerate) {
    fill_accelerate_job(own, prepared.models, options, *job);
  } else {
    update_plan(own, prepared.capture, prepared.records, prepared.writers);
    try {
      take_snapshot(own, prepared.capture, *job, options.check_replicas);
    } catch (const std::bad_alloc&) {
      job->error =
          "there is no memory for the copy of the state. Save without other large allocations, or with more ranks.";
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
