// Saving and loading a Learner: weights, optimizer, export, checkpoints in mid-epoch. See learner.h.
#include <ATen/ATen.h>
#include <torch/serialize.h>
#include <unistd.h>

#include <set>

#include "hasten/checkpoint/weights.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/file.h"
#include "hasten/core/number.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/disk/durable_folder.h"
#include "hasten/learner/files.h"
#include "hasten/learner/recorder.h"
#include "hasten/process/random.h"
#include "learner/checkpoint.h"
#include "learner/fastai_file.h"
#include "learner/learner_impl.h"

namespace hasten::learner {
namespace {

namespace fs = std::filesystem;

core::Value random_value(const Accelerator& accelerator) {
  const auto bytes = process::pack(process::capture_random_state());
  std::vector<at::Tensor> all{bytes};
  const comm::Purpose purpose("random states of the learner");
  if (accelerator.world_size() > 1) all = accelerator.group().all_gather(bytes);
  auto list = core::Value::list();
  for (const auto& one : all) {
    std::string hex;
    for (int64_t i = 0; i < one.numel(); ++i) {
      constexpr char kDigits[] = "0123456789abcdef";
      const uint8_t byte = one.const_data_ptr<uint8_t>()[i];
      hex += {kDigits[byte >> 4U], kDigits[byte & 15U]};
    }
    list.push_back(std::move(hex));
  }
  return list;
}

void restore_random(const core::Value& list, const Accelerator& accelerator) {
  const auto& all = list.as_list();
  const auto& hex = all[std::min(all.size() - 1, static_cast<size_t>(accelerator.rank()))].as_string();
  auto bytes = at::empty({static_cast<int64_t>(hex.size() / 2)}, at::kByte);
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.mutable_data_ptr<uint8_t>()[i / 2] = core::whole_number<uint8_t>(hex.substr(i, 2), 16).value();
  }
  process::restore_random_state(process::unpack_random_state(bytes));
}

std::vector<std::string> group_names(const std::vector<LayerGroup>& groups) {
  std::vector<std::string> names;
  for (const auto& group : groups) names.push_back(group.name);
  return names;
}

core::Value names_value(const std::vector<std::string>& names) {
  return core::Value(names);
}

}  // namespace

std::string save_optimizer(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

void load_optimizer(torch::optim::Optimizer& optimizer, const std::string& bytes, const std::string& path) {
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  try {
    archive.load_from(stream);
    optimizer.load(archive);
  } catch (const std::exception& error) {
    throw DataError(Origin{"learner"}, path, "cannot load the optimizer's state from ", path, ": ", error.what(),
                    " Load with an optimizer of the same kind and the same parameter groups, or with_opt = false.");
  }
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::error_code shown_by_the_write;
  fs::create_directories(path.parent_path(), shown_by_the_write);
  const auto temporary = (path.parent_path() / text(".", path.filename().string(), ".tmp-", ::getpid())).string();
  auto& disk = files::real_disk();
  files::write_file(disk, temporary, bytes);
  disk.rename(temporary, path.string(), files::Rename::kReplace);
}

std::string read_file(const fs::path& path) {
  auto bytes = core::read_file(path);
  if (bytes) return std::move(*bytes);
  throw DataError(Origin{"learner"}, path.string(), "cannot read ", path.string(),
                  ": no such file. Save it first, or check the name.");
}

void write_weights(const fs::path& path, const torch::nn::Module& module) {
  std::error_code shown_by_the_write;
  fs::create_directories(path.parent_path(), shown_by_the_write);
  checkpoint::save(module, path.string(), {.safe_serialization = true});
}

fs::path Learner::save(const std::string& name, bool with_opt) const {
  const auto base = model_path(name).string();
  const fs::path weights = base + ".safetensors";
  if (accelerator().is_main_process()) {
    write_weights(weights, *impl_->model.module());
    const bool opt = with_opt && impl_->optimizer;
    if (opt) write_file(base + ".optimizer.pt", save_optimizer(*impl_->optimizer));
    write_file(
        base + ".json",
        core::Value::map({{"with_opt", opt}, {"groups", names_value(group_names(impl_->groups))}}).to_json(2) + "\n");
  }
  accelerator().wait_for_everyone();
  return weights;
}

void Learner::load(const std::string& name, const LoadOptions& o) const {
  const auto base = model_path(name).string();
  if (!fs::exists(base + ".safetensors") && fs::exists(base + ".pth")) return load_fastai_file(*this, base + ".pth", o);
  if (!fs::exists(base + ".safetensors")) {
    throw DataError(Origin{"learner"}, base + ".safetensors", "no weights ", base,
                    ".safetensors, and no .pth of fastai; save them first, or check the name.");
  }
  checkpoint::load_weights(*impl_->model.module(), base + ".safetensors", {.strict = o.strict});
  const fs::path optimizer = base + ".optimizer.pt";
  if (o.with_opt.value_or(impl_->optimizer != nullptr) && fs::exists(optimizer)) {
    opt();
    load_optimizer(*impl_->optimizer, read_file(optimizer), optimizer.string());
  } else if (o.with_opt.value_or(false)) {
    throw DataError(Origin{"learner"}, optimizer.string(), "no optimizer state beside ", base,
                    ".safetensors; save with with_opt = true.");
  }
}

void Learner::export_to(const fs::path& folder) const {
  if (accelerator().is_main_process()) {
    write_weights(folder / "model.safetensors", *impl_->model.module());
    std::vector<std::string> names, metrics;
    for (const auto& one : cbs()) names.emplace_back(one.callback->name());
    for (const auto& metric : options().metrics) metrics.push_back(metric.name());
    const auto& o = options();
    write_file(folder / "learner.json",
               core::Value::map({{"version", 1},
                                 {"loss", o.loss ? o.loss.name() : "own"},
                                 {"callbacks", names_value(names)},
                                 {"metrics", names_value(metrics)},
                                 {"vocab", names_value(loaders().vocab)},
                                 {"wd_bn_bias", o.wd_bn_bias},
                                 {"train_bn", o.train_bn},
                                 {"moms", core::Value::list({o.moms[0], o.moms[1], o.moms[2]})},
                                 {"groups", names_value(group_names(impl_->groups))},
                                 {"frozen", impl_->frozen}})
                       .to_json(2) +
                   "\n");
  }
  accelerator().wait_for_everyone();
}

Learner load_learner(const fs::path& folder, AnyModel model, LearnerOptions options, Loaders loaders) {
  const auto path = folder / "learner.json";
  const auto value = core::Value::parse_json(read_file(path), path.string());
  if (loaders.vocab.empty()) {
    for (const auto& name : value.at("vocab").as_list()) loaders.vocab.push_back(name.as_string());
  }
  options.wd_bn_bias = value.at("wd_bn_bias").as_bool();
  options.train_bn = value.at("train_bn").as_bool();
  for (size_t i = 0; i < 3; ++i) options.moms[i] = value.at("moms").as_list()[i].as_double();
  if (options.loss && value.at("loss").as_string() != "own" && value.at("loss").as_string() != options.loss.name()) {
    throw UsageError(Origin{"learner"}, folder.string(), " was exported with the loss ", value.at("loss").as_string(),
                     ", this one is ", options.loss.name(), "; give load_learner the same loss.");
  }
  Learner learn(std::move(loaders), std::move(model), std::move(options));
  checkpoint::load_weights(*learn.model().module(), (folder / "model.safetensors").string());
  return learn;
}

void Learner::save_checkpoint(const fs::path& folder) const {
  auto& impl = *impl_;
  const auto& state = impl.state;
  if (impl.gradients_wait) {
    throw UsageError(Origin{"learner", impl.engine().accelerator.rank(), impl.engine().accelerator.world_size()},
                     "save_checkpoint while gradients of earlier batches wait for a step; call it where "
                     "Learner::gradients_wait() is false, or use checkpoint_every, which waits.");
  }
  auto value = core::Value::map({{"version", 1},
                                 {"epoch", state.epoch},
                                 {"n_epoch", state.n_epoch},
                                 {"iter", state.iter},
                                 {"n_iter", state.n_iter},
                                 {"train_iter", state.train_iter},
                                 {"pct_train", state.pct_train},
                                 {"training", state.training},
                                 {"frozen", impl.frozen}});
  value["groups"] = names_value(group_names(impl.groups));
  auto& engine = impl.engine();
  auto *train = impl.train_loader(), *valid = impl.valid_loader();
  value["loader"] = train != nullptr ? train->state() : core::Value();
  value["valid_loader"] = valid != nullptr ? valid->state() : core::Value();
  auto callbacks = core::Value::map();
  for (const auto& entry : impl.entries) callbacks[entry.callback->name()] = entry.callback->state();
  value["callbacks"] = std::move(callbacks);
  value["random"] = random_value(engine.accelerator);
  if (engine.accelerator.is_main_process()) {
    // The folder appears whole, or the one before stays.
    auto& disk = files::real_disk();
    const fs::path building = files::make_temporary_folder(disk, folder.string(), files::new_save_id());
    write_weights(building / "model.safetensors", *impl.model.module());
    write_file(building / "optimizer.pt", save_optimizer(opt()));
    write_file(building / "fit.json", value.to_json(1) + "\n");
    files::commit_folder(disk, building.string(), folder.string());
  }
  engine.accelerator.wait_for_everyone();
}

CheckpointReader::CheckpointReader(const fs::path& folder)
    : folder_(folder),
      state_(core::Value::parse_json(read_file(folder / "fit.json"), (folder / "fit.json").string())) {}

int64_t CheckpointReader::epoch(int64_t num_epochs) const {
  if (state_.at("n_epoch").as_int() != num_epochs) {
    throw UsageError(Origin{"learner"}, folder_.string(), " is of a fit of ", state_.at("n_epoch").as_int(),
                     " epochs, this one has ", num_epochs, "; schedules would not fit. Resume with the same number.");
  }
  // Saved behind an epoch: the next one.
  return state_.at("epoch").as_int() + (in_training() ? 0 : 1);
}

bool CheckpointReader::in_training() const {
  return state_.at("training").as_bool();
}

void CheckpointReader::restore(Learner& learn) const {
  auto& impl = learn.impl();
  const auto names = names_value(group_names(impl.groups));
  if (!(state_.at("groups") == names)) {
    throw UsageError(Origin{"learner"}, folder_.string(), " has the layer groups ", state_.at("groups").to_json(),
                     ", this Learner ", names.to_json(), "; resume with the same model and splitter.");
  }
  const auto& saved = state_.at("callbacks");
  std::set<std::string> known{"resume"};
  for (const auto& [name, value] : saved.as_map()) known.insert(name);
  for (const auto& entry : impl.entries) {
    if (known.erase(std::string(entry.callback->name())) == 0) {
      throw UsageError(Origin{"learner"}, folder_.string(), " has no callback '", entry.callback->name(),
                       "'; resume with the callbacks that the fit had: ", join(known), ".");
    }
  }
  known.erase("resume");
  if (!known.empty()) {
    throw UsageError(Origin{"learner"}, folder_.string(), " also has the callbacks ", join(known),
                     "; resume with the callbacks that the fit had.");
  }
  // The loaders come first: they refuse other data, and nothing else has changed then.
  auto& engine = impl.engine();
  for (const auto& [key, loader] :
       {std::pair{"loader", impl.train_loader()}, std::pair{"valid_loader", impl.valid_loader()}}) {
    if (loader != nullptr && !state_.at(key).is_null()) loader->load_state(state_.at(key));
  }
  checkpoint::load_weights(*impl.model.module(), (folder_ / "model.safetensors").string());
  const auto optimizer = folder_ / "optimizer.pt";
  load_optimizer(learn.opt(), read_file(optimizer), optimizer.string());
  if (static_cast<size_t>(state_.at("frozen").as_int()) != impl.frozen) learn.freeze_to(state_.at("frozen").as_int());
  for (const auto& entry : impl.entries) {
    const auto* one = saved.find(entry.callback->name());
    if (one != nullptr && !one->is_null()) entry.callback->load_state(*one);
  }
  impl.state.epoch = state_.at("epoch").as_int() + (in_training() ? 0 : 1);
  impl.state.train_iter = state_.at("train_iter").as_int();
  impl.state.pct_train = state_.at("pct_train").as_double();
  impl.resume_iter = in_training() ? state_.at("iter").as_int() + 1 : 0;
  restore_random(state_.at("random"), engine.accelerator);
}

void ResumeCallback::before_train(Learner& learn) {
  if (std::exchange(started, true)) return;
  // TrainEval has set the position to the epoch's start.
  auto& state = learn.impl().state;
  const auto size = static_cast<int64_t>(learn.impl().train_loader()->size());
  state.pct_train =
      static_cast<double>(state.epoch * size + learn.impl().resume_iter) / static_cast<double>(size * state.n_epoch);
}

}  // namespace hasten::learner
