// See tensorboard.h. A group of values goes into runs of their own, one a key, as add_scalars has it. File names follow
// from the run's start, so that a follower that goes on finds its files again.
#include "tracking/sinks/tensorboard.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "hasten/core/base64.h"
#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/socket.h"
#include "tracking/journal/embedding.h"
#include "tracking/journal/json.h"
#include "tracking/journal/png.h"
#include "tracking/sinks/event_file.h"
#include "tracking/sinks/summary.h"

namespace hasten::tracking {
namespace {

std::string read_whole(const std::filesystem::path& path) {
  auto bytes = core::read_file(path);
  if (!bytes) throw DataError(Origin{"tracking"}, path, path, " cannot be read. Leave the run's media in their place.");
  return *std::move(bytes);
}

struct Options {
  bool double_scalars = false;
  std::string log_dir = {}, comment = {}, filename_suffix = {};
  std::optional<int64_t> purge_step = {};
  int64_t max_queue = INT64_MAX;
};

class TensorBoard : public Tracker {
 public:
  explicit TensorBoard(Options options) : options_(std::move(options)) {}

  const TrackerTraits& traits() const noexcept override { return traits_; }

  void resume(const core::Value& state) override {
    state_ = state;
    if (const auto* counter = state.find("counter")) counter_ = static_cast<int>(counter->as_int());
    if (const auto* tags = state.find("experiment_written")) experiment_written_ = tags->as_bool();
    if (const auto* config = state.find("config")) config_ = *config;
  }

  void start(const RunInfo& run) override {
    run_ = run;
    std::filesystem::path folder = options_.log_dir;
    if (folder.empty()) folder = run.folder.string() + options_.comment;
    folder_ = run.rank == 0 ? folder : folder / text("rank_", run.rank);
    const bool is_new = state_.find("files") == nullptr;
    file("");
    if (is_new && options_.purge_step) append("", summary::start_event(time_s(), *options_.purge_step));
  }

  void store_init_configuration(const core::Value& config) override {
    config_ = config;
    file("").append(summary::event(time_s(), 0, summary::hparams_start(config, time_s())));
    std::ofstream(folder_ / "hparams.yml") << to_yaml(config);
  }

  void log(const Values& values, int64_t step, const core::Value&) override {
    for (const auto& [key, value] : values) {
      if (value.kind() == Value::Kind::kGroup) {
        for (const auto& [inner, leaf] : flatten(value.as_group())) log_one(sub_run(key, inner), key, leaf, step);
      } else {
        log_one("", key, value, step);
      }
    }
    if (!experiment_written_ && !config_.is_null()) write_experiment(values);
  }

  bool log_images(const ImageFiles& images, int64_t step, const core::Value&) override {
    for (const auto& [key, paths] : images) {
      std::vector<Image> decoded;
      for (const auto& path : paths) decoded.push_back(decode_png(read_whole(path), path));
      const Image grid = image_grid(decoded);
      const std::string png = paths.size() == 1 ? read_whole(paths.front()) : encode_png(grid);
      add(step, summary::image(key, grid.width, grid.height, grid.channels, png));
    }
    return true;
  }

  bool log_table(const std::string& key, const Table& table, int64_t step, const core::Value&) override {
    std::string markdown = "|";
    for (const std::string& column : table.columns) markdown += " " + column + " |";
    markdown += "\n|";
    for (size_t i = 0; i < table.columns.size(); ++i) markdown += " --- |";
    for (const auto& row : table.rows) {
      markdown += "\n|";
      for (const core::Value& cell : row) {
        std::string words;
        append_json(words, cell);
        markdown += " " + (cell.is_string() ? cell.as_string() : words) + " |";
      }
    }
    add(step, summary::text(key, markdown));
    return true;
  }

  bool log_histogram(const std::string& key, const Histogram& histogram, int64_t step) override {
    add(step, summary::histogram(key, histogram));
    return true;
  }

  bool log_graph(const std::vector<GraphNode>& graph) override {
    file("").append(summary::graph_event(time_s(), summary::graph(graph)));
    return true;
  }

  // The files are copied, so that the run's folder shows them wherever it is moved to.
  bool log_embedding(const std::string& key, const EmbeddingFiles& files, int64_t step) override {
    const auto place = folder_ / embedding_folder(key, step);
    std::filesystem::create_directories(place);
    for (const char* name : {"tensors.tsv", "metadata.tsv", "sprite.png"}) {
      if (!std::filesystem::exists(files.folder / name)) continue;
      std::filesystem::copy_file(files.folder / name, place / name, std::filesystem::copy_options::overwrite_existing);
    }
    core::Value& all = state_["embeddings"];
    if (!all.is_map()) all = core::Value::map();
    all[embedding_folder(key, step)] = projector_entry(key, step, files);
    std::ofstream config(folder_ / "projector_config.pbtxt");
    for (const auto& [name, entry] : all.as_map()) config << entry.as_string();
    config.close();
    if (!config)
      throw DataError(Origin{"tracking"}, folder_, folder_, ": projector_config.pbtxt cannot be written. Make room.");
    return true;
  }

  // "add_summary": a Summary of the caller's own, in base64.
  bool call(const std::string& function, const core::Value& arguments, const core::Value&) override {
    if (function != "add_summary" || arguments.size() != 2) return false;
    const auto bytes = from_base64(arguments.as_list()[0].as_string());
    if (bytes) add(arguments.as_list()[1].as_int(), *bytes);
    return bytes.has_value();
  }

  bool rewind(int64_t step) override {
    // TensorBoard drops the values at this step and later in the files before.
    for (auto& [run, open] : files_) open.flush();
    keep_lengths();
    files_.clear();
    std::set<std::string> runs;
    for (const auto& [name, length] : state_["files"].as_map()) runs.insert(std::filesystem::path(name).parent_path());
    ++counter_;
    for (const std::string& run : runs) file(run).append(summary::start_event(time_s(), step + 1));
    return true;
  }

  core::Value flush() override {
    for (auto& [run, open] : files_) open.flush();
    keep_lengths();
    state_["counter"] = counter_;
    state_["experiment_written"] = experiment_written_;
    state_["config"] = config_;
    return state_;
  }

  void finish(RunEnd end) override {
    if (config_.is_null()) return;
    if (!experiment_written_) write_experiment({});
    file("").append(summary::event(time_s(), 0, summary::hparams_end(end == RunEnd::kFinished, time_s())));
  }

 private:
  static std::string sub_run(std::string main_tag, const std::string& key) {
    std::string run = main_tag + "_" + key;
    std::replace(run.begin(), run.end(), '/', '_');
    return run;
  }

  EventFile& file(const std::string& run) {
    if (const auto found = files_.find(run); found != files_.end()) return found->second;
    const std::string name =
        event_file_name(run_.start_time_s, net::host_name(), run_.pid, counter_, options_.filename_suffix);
    const std::string relative = run.empty() ? name : run + "/" + name;
    const core::Value* lengths = state_.find("files");
    const core::Value* length = lengths != nullptr ? lengths->find(relative) : nullptr;
    return files_.emplace(run, EventFile(folder_ / relative, length != nullptr ? length->as_int() : 0, time_s()))
        .first->second;
  }

  void keep_lengths() {
    core::Value& lengths = state_["files"];
    for (auto& [run, open] : files_) lengths[std::filesystem::relative(open.path(), folder_).string()] = open.length();
  }

  void append(const std::string& run, const std::string& event) {
    EventFile& to = file(run);
    to.append(event);
    written(to);
  }

  void written(EventFile& to) {
    if (++num_waiting_ < options_.max_queue) return;
    to.flush();
    num_waiting_ = 0;
  }

  void add(int64_t step, const std::string& summary) { append("", summary::event(time_s(), step, summary)); }

  void log_one(const std::string& run, const std::string& tag, const Value& value, int64_t step) {
    if (value.kind() == Value::Kind::kString) {
      append(run, summary::event(time_s(), step, summary::text(tag, value.as_string())));
    } else if (options_.double_scalars) {
      append(run, summary::event(time_s(), step, summary::double_scalar(tag, value.as_number())));
    } else {
      EventFile& to = file(run);
      to.append_scalar(time_s(), step, tag, static_cast<float>(value.as_number()));
      written(to);
    }
  }

  void write_experiment(const Values& values) {
    std::vector<std::string> metrics;
    for (const auto& [key, value] : values) {
      if (value.is_number()) metrics.push_back(key);
    }
    file("").append(summary::event(time_s(), 0, summary::hparams_experiment(config_, metrics)));
    experiment_written_ = true;
  }

  const TrackerTraits traits_ = {"tensorboard", true};
  const Options options_;
  int64_t num_waiting_ = 0;  // events since the last write for max_queue
  RunInfo run_;
  std::filesystem::path folder_;
  core::Value state_ = core::Value::map();
  core::Value config_;
  bool experiment_written_ = false;
  int counter_ = 0;
  std::map<std::string, EventFile> files_;
};

void append_yaml(std::string& out, const core::Value& value, int indent) {
  const std::string blanks(static_cast<size_t>(indent), ' ');
  const auto element = [&](const core::Value& inner) {
    if ((inner.is_map() || inner.is_list()) && !inner.empty()) {
      out += '\n';
      append_yaml(out, inner, indent + 2);
    } else {
      out += ' ';
      append_json(out, inner);
      out += '\n';
    }
  };
  if (value.is_map()) {
    for (const auto& [key, inner] : value.as_map()) {
      out += blanks;
      append_json_string(out, key);
      out += ':';
      element(inner);
    }
  } else if (value.is_list()) {
    for (const core::Value& inner : value.as_list()) {
      out += blanks + "-";
      element(inner);
    }
  }
}

[[noreturn]] void refuse(const std::string& key, const core::Value& value, const char* expected) {
  throw UsageError({"tracking"}, "init_kwargs for 'tensorboard' has ", key, " ", value.to_json(), "; expected ",
                   expected, ".");
}

int64_t whole_number(const std::string& key, const core::Value& value) {
  if (!value.is_int() || value.as_int() < 0) refuse(key, value, "a whole number from 0 on");
  return value.as_int();
}

std::string word(const std::string& key, const core::Value& value) {
  if (!value.is_string()) refuse(key, value, "a text");
  return value.as_string();
}

Options read_options(const core::Value& given) {
  Options options;
  if (!given.is_map()) return options;
  for (const auto& [key, value] : given.as_map()) {
    if (value.is_null()) continue;  // Python's None: the default
    if (key == "double_scalars") {
      if (!value.is_bool()) refuse(key, value, "true or false");
      options.double_scalars = value.as_bool();
    } else if (key == "purge_step") {
      options.purge_step = whole_number(key, value);
    } else if (key == "max_queue") {
      options.max_queue = std::min(options.max_queue, std::max(whole_number(key, value), int64_t{1}));
    } else if (key == "flush_secs") {
      if (!value.is_number() || !(value.as_double() >= 0)) refuse(key, value, "seconds from 0 on");
      if (value.as_double() < 1) options.max_queue = 1;
    } else if (key == "log_dir") {
      options.log_dir = word(key, value);
    } else if (key == "comment") {
      options.comment = word(key, value);
    } else if (key == "filename_suffix") {
      options.filename_suffix = word(key, value);
      if (options.filename_suffix.find('/') != std::string::npos) refuse(key, value, "a text without '/'");
    }
  }
  return options;
}

}  // namespace

std::string to_yaml(const core::Value& config) {
  std::string out;
  append_yaml(out, config, 0);
  return out.empty() ? "{}\n" : out;
}

std::vector<std::string> tensorboard_options() {
  return {"double_scalars", "log_dir", "comment", "purge_step", "max_queue", "flush_secs", "filename_suffix"};
}

std::unique_ptr<Tracker> make_tensorboard(const core::Value& options, const Environment&) {
  return std::make_unique<TensorBoard>(read_options(options));
}

}  // namespace hasten::tracking
