// Saving and loading a Learner: weights, optimizer, export, checkpoints in mid-epoch. See learner.h.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <torch/serialize.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "hasten/data/dataset/safetensors.h"
#include "hasten/learner/files.h"
#include "hasten/learner/recorder.h"
#include "hasten/parallel/parameters/state_dict.h"
#include "hasten/process/random.h"
#include "learner/checkpoint.h"
#include "learner/learner_impl.h"

namespace hasten::learner {
namespace {

namespace fs = std::filesystem;

const char* safetensors_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return "F32";
    case at::kDouble: return "F64";
    case at::kHalf: return "F16";
    case at::kBFloat16: return "BF16";
    case at::kLong: return "I64";
    case at::kInt: return "I32";
    case at::kShort: return "I16";
    case at::kChar: return "I8";
    case at::kByte: return "U8";
    case at::kBool: return "BOOL";
    default: throw UsageError(Origin{"learner"}, "a tensor of dtype ", dtype, " cannot be written as safetensors; convert it first.");
  }
}

core::Value random_value(const Accelerator& accelerator) {
  const auto bytes = process::pack(process::capture_random_state());
  std::vector<at::Tensor> all{bytes};
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
    bytes.mutable_data_ptr<uint8_t>()[i / 2] = static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  process::restore_random_state(process::unpack_random_state(bytes));
}

std::vector<std::string> group_names(const std::vector<LayerGroup>& groups) {
  std::vector<std::string> names;
  for (const auto& group : groups) names.push_back(group.name);
  return names;
}

core::Value names_value(const std::vector<std::string>& names) { return core::Value(names); }

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
  std::error_code ignored;
  fs::create_directories(path.parent_path(), ignored);
  const auto temporary = path.string() + ".tmp";
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  bool written = file >= 0;
  for (size_t done = 0; written && done < bytes.size();) {
    const ssize_t count = ::write(file, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    written = count > 0;
    done += written ? static_cast<size_t>(count) : 0;
  }
  written = written && fsync(file) == 0;
  const int reason = errno;
  if (file >= 0) close(file);
  if (!written || rename(temporary.c_str(), path.c_str()) != 0) {
    throw DataError(Origin{"learner"}, path.string(), "cannot write ", path.string(), ": ", std::strerror(written ? errno : reason),
                    ". Give the Learner another path, or free space.");
  }
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw DataError(Origin{"learner"}, path.string(), "cannot read ", path.string(), ": no such file. Save it first, or check the name.");
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string safetensors_bytes(const std::map<std::string, at::Tensor>& tensors, const std::map<std::string, std::string>& metadata) {
  auto header = core::Value::map();
  if (!metadata.empty()) {
    auto notes = core::Value::map();
    for (const auto& [key, value] : metadata) notes[key] = value;
    header["__metadata__"] = std::move(notes);
  }
  std::string body;
  for (const auto& [name, tensor] : tensors) {
    const auto flat = tensor.detach().cpu().contiguous();
    const size_t begin = body.size();
    body.append(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
    header[name] = core::Value::map({{"dtype", safetensors_dtype(flat.scalar_type())},
                                     {"shape", core::Value(flat.sizes().vec())},
                                     {"data_offsets", core::Value::list({begin, body.size()})}});
  }
  auto text = header.to_json();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>((text.size() >> (8 * i)) & 255U);
  return bytes + text + body;
}

void load_tensors(torch::nn::Module& module, const std::map<std::string, at::Tensor>& tensors, bool strict, const std::string& path) {
  const auto own = parallel::state_dict(module);
  std::vector<std::string> problems;
  for (const auto& [name, tensor] : own) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) problems.push_back("no '" + name + "'");
    else if (found->second.sizes() != tensor.sizes()) problems.push_back(text("'", name, "' is ", found->second.sizes(), ", the model's is ", tensor.sizes()));
  }
  for (const auto& [name, tensor] : tensors) {
    if (own.count(name) == 0) problems.push_back("'" + name + "' is not in the model");
  }
  if (strict && !problems.empty()) {
    throw UsageError(Origin{"learner"}, path, " does not fit the model: ", join(problems), ". Load with strict = false to take what fits.");
  }
  const at::NoGradGuard no_grad;
  for (auto [name, tensor] : own) {
    const auto found = tensors.find(name);
    if (found != tensors.end() && found->second.sizes() == tensor.sizes()) tensor.copy_(found->second);
  }
}

fs::path Learner::save(const std::string& name, bool with_opt) const {
  const auto base = model_path(name).string();
  const fs::path weights = base + ".safetensors";
  if (accelerator().is_main_process()) {
    write_file(weights, safetensors_bytes(parallel::state_dict(*impl_->model.module()), {{"format", "pt"}}));
    const bool opt = with_opt && impl_->optimizer;
    if (opt) write_file(base + ".optimizer.pt", save_optimizer(*impl_->optimizer));
    write_file(base + ".json", core::Value::map({{"with_opt", opt}, {"groups", names_value(group_names(impl_->groups))}}).to_json(2) + "\n");
  }
  accelerator().wait_for_everyone();
  return weights;
}

void Learner::load(const std::string& name, const LoadOptions& o) const {
  const auto base = model_path(name).string();
  const data::SafetensorsFile file(base + ".safetensors");
  load_tensors(*impl_->model.module(), file.tensors(), o.strict, file.path());
  const fs::path optimizer = base + ".optimizer.pt";
  if (o.with_opt.value_or(impl_->optimizer != nullptr) && fs::exists(optimizer)) {
    opt();
    load_optimizer(*impl_->optimizer, read_file(optimizer), optimizer.string());
  } else if (o.with_opt.value_or(false)) {
    throw DataError(Origin{"learner"}, optimizer.string(), "no optimizer state beside ", file.path(), "; save with with_opt = true.");
  }
}

void Learner::export_to(const fs::path& folder) const {
  if (accelerator().is_main_process()) {
    write_file(folder / "model.safetensors", safetensors_bytes(parallel::state_dict(*impl_->model.module()), {{"format", "pt"}}));
    std::vector<std::string> names, metrics;
    for (const auto& one : cbs()) names.emplace_back(one.callback->name());
    for (const auto& metric : options().metrics) metrics.push_back(metric.name());
    const auto& o = options();
    write_file(folder / "learner.json",
               core::Value::map({{"version", 1}, {"loss", o.loss ? o.loss.name() : "own"}, {"callbacks", names_value(names)},
                                 {"metrics", names_value(metrics)}, {"vocab", names_value(loaders().vocab)},
                                 {"wd_bn_bias", o.wd_bn_bias}, {"train_bn", o.train_bn},
                                 {"moms", core::Value::list({o.moms[0], o.moms[1], o.moms[2]})},
                                 {"groups", names_value(group_names(impl_->groups))}, {"frozen", impl_->frozen}})
                       .to_json(2) + "\n");
  }
  accelerator().wait_for_everyone();
}

Learner load_learner(const fs::path& folder, Model model, LearnerOptions options, Loaders loaders) {
  const auto path = folder / "learner.json";
  const auto value = core::Value::parse_json(read_file(path), path.string());
  if (loaders.vocab.empty()) {
    for (const auto& name : value.at("vocab").as_list()) loaders.vocab.push_back(name.as_string());
  }
  options.wd_bn_bias = value.at("wd_bn_bias").as_bool();
  options.train_bn = value.at("train_bn").as_bool();
  for (size_t i = 0; i < 3; ++i) options.moms[i] = value.at("moms").as_list()[i].as_double();
  if (options.loss && value.at("loss").as_string() != "own" && value.at("loss").as_string() != options.loss.name()) {
    throw UsageError(Origin{"learner"}, folder.string(), " was exported with the loss ", value.at("loss").as_string(), ", this one is ",
                     options.loss.name(), "; give load_learner the same loss.");
  }
  Learner learn(std::move(loaders), std::move(model), std::move(options));
  const data::SafetensorsFile file((folder / "model.safetensors").string());
  load_tensors(*learn.model().module(), file.tensors(), true, file.path());
  return learn;
}

void Learner::save_checkpoint(const fs::path& folder) const {
  auto& impl = *impl_;
  const auto& state = impl.state;
  auto value = core::Value::map({{"version", 1}, {"epoch", state.epoch}, {"n_epoch", state.n_epoch}, {"iter", state.iter},
                                 {"n_iter", state.n_iter}, {"train_iter", state.train_iter}, {"pct_train", state.pct_train},
                                 {"training", state.training}, {"frozen", impl.frozen}});
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
    write_file(folder / "model.safetensors", safetensors_bytes(parallel::state_dict(*impl.model.module()), {}));
    write_file(folder / "optimizer.pt", save_optimizer(opt()));
    // Last: a folder without it is no checkpoint.
    write_file(folder / "fit.json", value.to_json(1) + "\n");
  }
  engine.accelerator.wait_for_everyone();
}

CheckpointReader::CheckpointReader(const fs::path& folder)
    : folder_(folder), state_(core::Value::parse_json(read_file(folder / "fit.json"), (folder / "fit.json").string())) {}

int64_t CheckpointReader::epoch(int64_t num_epochs) const {
  if (state_.at("n_epoch").as_int() != num_epochs) {
    throw UsageError(Origin{"learner"}, folder_.string(), " is of a fit of ", state_.at("n_epoch").as_int(), " epochs, this one has ", num_epochs,
                     "; schedules would not fit. Resume with the same number.");
  }
  // Saved behind an epoch: the next one.
  return state_.at("epoch").as_int() + (in_training() ? 0 : 1);
}

bool CheckpointReader::in_training() const { return state_.at("training").as_bool(); }

void CheckpointReader::restore(Learner& learn) const {
  auto& impl = learn.impl();
  const auto names = names_value(group_names(impl.groups));
  if (!(state_.at("groups") == names)) {
    throw UsageError(Origin{"learner"}, folder_.string(), " has the layer groups ", state_.at("groups").to_json(), ", this Learner ",
                     names.to_json(), "; resume with the same model and splitter.");
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
    throw UsageError(Origin{"learner"}, folder_.string(), " also has the callbacks ", join(known), "; resume with the callbacks that the fit had.");
  }
  const data::SafetensorsFile file((folder_ / "model.safetensors").string());
  load_tensors(*impl.model.module(), file.tensors(), true, file.path());
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
  impl.resume_loader = state_.at("loader");
  impl.resume_iter = in_training() ? state_.at("iter").as_int() + 1 : 0;
  auto& engine = impl.engine();
  auto* valid = impl.valid_loader();
  if (valid != nullptr && !state_.at("valid_loader").is_null()) valid->load_state(state_.at("valid_loader"));
  restore_random(state_.at("random"), engine.accelerator);
}

void ResumeCallback::before_train(Learner& learn) {
  if (std::exchange(started, true)) return;
  // TrainEval has set the position to the epoch's start.
  auto& state = learn.impl().state;
  const auto size = static_cast<int64_t>(learn.impl().train_loader()->size());
  state.pct_train = static_cast<double>(state.epoch * size + learn.impl().resume_iter) / static_cast<double>(size * state.n_epoch);
}

}  // namespace hasten::learner
