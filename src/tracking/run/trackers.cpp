// See trackers.h. The public functions turn their arguments into journal lines; active_run.h holds what runs.
#include "hasten/tracking/run/trackers.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <random>
#include <set>
#include <string>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/shell.h"
#include "hasten/core/socket.h"
#include "hasten/tracking/follower/follower.h"
#include "tracking/follower/follower_process.h"
#include "tracking/follower/resolve.h"
#include "tracking/journal/embedding.h"
#include "tracking/journal/image_writer.h"
#include "tracking/journal/json.h"
#include "tracking/journal/line_queue.h"
#include "tracking/run/active_run.h"

namespace hasten::tracking {
namespace {

constexpr size_t kMostKeyBytes = 512;
const Origin kRoom{"tracking"};

void require_keys(const Values& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string& key = values[i].first;
    if (key.empty() || key.size() > kMostKeyBytes) {
      throw UsageError(kRoom, "a key of ", key.size(), " bytes ('", key.substr(0, 40), "'); expected 1 to ",
                       kMostKeyBytes, ". Name the value.");
    }
    if (values[i].second.kind() == Value::Kind::kInvalid) {
      throw UsageError(
          kRoom, "the value of '", key, "' is ", values[i].second.what_is_wrong(),
          "; expected a number, a text or a tensor of one element. Reduce it (mean(), item()), or log a histogram.");
    }
    if (values[i].second.kind() == Value::Kind::kGroup) require_keys(values[i].second.as_group());
    for (size_t j = 0; j < i && values.size() <= 32; ++j) {
      if (values[j].first == key)
        throw UsageError(kRoom, "the key '", key, "' stands twice in one call; expected each once. Rename one.");
    }
  }
  if (values.size() <= 32) return;
  std::vector<std::string> keys;
  for (const Entry& entry : values) keys.push_back(entry.first);
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice != keys.end())
    throw UsageError(kRoom, "the key '", *twice, "' stands twice in one call; expected each once. Rename one.");
}

}  // namespace

std::string make_run_id() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char day[32];
  std::strftime(day, sizeof day, "%Y%m%d-%H%M%S", &local);
  std::random_device random;
  char tail[16];
  std::snprintf(tail, sizeof tail, "%06x", random() & 0xFFFFFFU);
  return text(day, '-', tail);
}

struct Trackers::Impl {
  explicit Impl(TrackersSetup own_setup)
      : setup(std::move(own_setup)), logger("tracking", {setup.rank, setup.world_size}) {
    for (const LogWith& one : setup.log_with) {
      if (!one.tracker() && one.name() != "all") setup.options.registry.at(one.name());
    }
  }
  ~Impl() {
    if (run && std::uncaught_exceptions() > 0) finish(RunEnd::kFailed, false);
    // Without end_training the followers see the pipe's end and end the run as crashed.
  }

  void require_started(const char* what) const {
    if (initialised) return;
    throw UsageError(kRoom, what, " before init_trackers; expected a run. ",
                     setup.log_with.empty()
                         ? "Name trackers in AcceleratorOptions.log_with and call init_trackers first."
                         : "Call init_trackers(project) first.");
  }

  void require_open(const char* what) const {
    require_started(what);
    if (!closed) return;
    throw UsageError(kRoom, what,
                     " behind end_training(), which has closed the trackers; expected a run that goes on. Call "
                     "it before end_training().");
  }

  int64_t step_of(std::optional<int64_t> step) {
    const int64_t value = step ? *step : calls_without_step++;
    if (value < 0) throw UsageError(kRoom, "step ", value, "; expected a step from 0. Correct the count.");
    if (value < last_step && !said_back) {
      said_back = true;
      if (run)
        run->warn(text("step ", value, " comes after step ", last_step,
                       ". Trackers show steps as they come; after loading a checkpoint "
                       "call trackers().load_state."));
    }
    last_step = value;
    return value;
  }

  bool is_logging() const { return run != nullptr && logs; }
  bool is_main() const { return setup.rank == 0; }
  void start_run(const std::string& project, const core::Value& config, const ResolvedTrackers& resolved);
  core::Value start_record(const std::string& project, const ResolvedTrackers& resolved) const;
  void follow(const ResolvedTrackers& resolved);
  void finish(RunEnd end, bool waits);
  void push(const core::Value& record) {
    std::string line;
    append_json(line, record);
    run->queue.push(line + "\n");
  }

  TrackersSetup setup;
  Logger logger;
  bool initialised = false, closed = false, said_back = false;
  std::string run_id, resumed_run;
  std::optional<int64_t> resumed_step;
  std::set<std::string> empty_histograms;  ///< keys that were reported
  std::filesystem::path folder;
  int64_t calls_without_step = 0, last_step = 0;
  std::vector<std::string> names;
  std::vector<std::shared_ptr<Tracker>> objects;
  std::vector<std::function<Values()>> metric_sources;
  std::unique_ptr<ActiveRun> run;
  std::mutex run_mutex;  // of the pointer, for notes from other threads
  bool logs = false;     // whether this rank has a tracker
};

core::Value Trackers::Impl::start_record(const std::string& project, const ResolvedTrackers& resolved) const {
  core::Value list = core::Value::list();
  for (const SinkConfig& sink : resolved.built_in)
    list.push_back(core::Value::map({{"name", sink.name}, {"options", sink.options}}));
  const auto own_folder =
      setup.logging_dir.empty() ? folder : std::filesystem::absolute(setup.logging_dir / project / run_id);
  return core::Value::map({{"op", "start"},
                           {"t", unix_time_s()},
                           {"version", 1},
                           {"project", project},
                           {"run_id", run_id},
                           {"folder", own_folder.string()},
                           {"rank", setup.rank},
                           {"world_size", setup.world_size},
                           {"host", net::host_name()},
                           {"pid", static_cast<int64_t>(getpid())},
                           {"trackers", list}});
}

void Trackers::Impl::follow(const ResolvedTrackers& resolved) {
  const auto warn = [run = run.get()](const std::string& line) { run->warn(line); };
  std::vector<SinkConfig> fed = resolved.built_in;
  std::erase_if(fed, [](const SinkConfig& sink) { return sink.name == "journal"; });
  if (!fed.empty()) {
    const auto program = follower_program(setup.options.program, setup.environment);
    if (!program.empty()) {
      run->process = std::make_unique<FollowerProcess>(FollowerProcessOptions{
          program, run->journal->path(), setup.options.drain_timeout_s, setup.environment, warn});
    } else {
      run->warn(
          "there is no `hasten` command beside this program or on PATH; trackers run on a thread of the training. "
          "Install it, or set "
          "HASTEN_TRACK_PROGRAM.");
      run->own.push_back(std::make_unique<Follower>(FollowerOptions{.journal = run->journal->path(),
                                                                    .sinks = fed,
                                                                    .registry = setup.options.registry,
                                                                    .environment = setup.environment,
                                                                    .warn = warn}));
    }
  }
  if (!resolved.own.empty()) {
    run->own.push_back(std::make_unique<Follower>(FollowerOptions{.journal = run->journal->path(),
                                                                  .sinks = resolved.own,
                                                                  .registry = setup.options.registry,
                                                                  .environment = setup.environment,
                                                                  .warn = warn}));
  }
}

void Trackers::Impl::start_run(const std::string& project, const core::Value& config,
                               const ResolvedTrackers& resolved) {
  run_id = !resumed_run.empty()            ? resumed_run
           : !setup.options.run_id.empty() ? setup.options.run_id
           : !setup.run_key.empty()        ? setup.run_key
                                           : make_run_id();
  require_project_name(run_id);
  folder = std::filesystem::absolute(journal_root(setup) / project / run_id);
  const auto path = folder / (is_main() ? std::string("journal.jsonl") : text("journal-rank", setup.rank, ".jsonl"));
  std::error_code failed;
  const bool goes_on = std::filesystem::exists(path, failed) && std::filesystem::file_size(path, failed) > 0;
  auto fresh = std::make_unique<ActiveRun>(setup.options, path, logger);
  write_sinks(path, resolved.built_in);
  core::Value first = start_record(project, resolved);
  if (goes_on)
    first = core::Value::map({{"op", "resume"}, {"t", unix_time_s()}, {"pid", static_cast<int64_t>(getpid())}});
  if (goes_on && resumed_step) first["step"] = *resumed_step;
  const bool written = fresh->journal->append(first);
  if (!written ||
      (!config.is_null() && !config.empty() && is_main() && !goes_on &&
       !fresh->journal->append(core::Value::map({{"op", "config"}, {"t", unix_time_s()}, {"config", config}})))) {
    throw DataError(kRoom, path, path, " cannot be written: ", fresh->journal->error(),
                    ". Make room, or choose another folder.");
  }
  last_step = resumed_step.value_or(0);
  logs = is_main() || !resolved.names().empty();
  const std::lock_guard lock(run_mutex);
  run = std::move(fresh);
  for (const auto& source : metric_sources) run->add_metrics(source);
  follow(resolved);
  run->look_after();
}

void Trackers::Impl::finish(RunEnd end, bool waits) {
  closed = true;
  if (!run) return;
  run->images.drain();
  run->stop();
  run->queue.drain(/*all=*/true);
  const char* const kWords[] = {"finished", "failed", "crashed", "interrupted"};
  run->journal->append(
      core::Value::map({{"op", "finish"}, {"t", unix_time_s()}, {"end", kWords[static_cast<int>(end)]}}));
  run->ended = true;
  bool all = true;
  if (waits) {
    const std::chrono::milliseconds timeout(static_cast<int64_t>(setup.options.finish_timeout_s * 1e3));
    const auto start = std::chrono::steady_clock::now();
    for (const auto& follower : run->own) follower->close();
    if (run->process) all = run->process->finish(timeout);
    for (const auto& follower : run->own) {
      const auto left = timeout - (std::chrono::steady_clock::now() - start);
      all = follower->wait(
                std::max(std::chrono::duration_cast<std::chrono::milliseconds>(left), std::chrono::milliseconds(0))) &&
            all;
    }
  }
  if (!all) {
    logger.warning(
        text("not everything has reached the trackers. The journal has it all; to complete them: hasten track recover ",
             shell_word(folder.string())),
        {.main_process_only = false});
  }
  std::unique_ptr<ActiveRun> ended;
  {
    const std::lock_guard lock(run_mutex);
    ended = std::move(run);
  }
}

Trackers::Trackers() : Trackers(TrackersSetup{}) {}
Trackers::Trackers(TrackersSetup setup) : impl_(std::make_shared<Impl>(std::move(setup))) {}

void Trackers::init(const std::string& project, const Config& config, const Config& init_kwargs) {
  Impl& impl = *impl_;
  if (impl.initialised) {
    throw UsageError(kRoom,
                     "init_trackers was called a second time; expected one run an Accelerator. Leave it out, or make "
                     "another Accelerator.");
  }
  if (impl.setup.log_with.empty()) {
    throw UsageError(kRoom,
                     "init_trackers without a tracker. Name some: AcceleratorOptions{.log_with = {\"tensorboard\"}}; "
                     "\"journal\" needs nothing.");
  }
  require_project_name(project);
  if (!config.value().is_null() && !config.value().is_map() && !config.value().empty()) {
    throw UsageError(kRoom, "the configuration of a run is ", config.value().to_json(),
                     "; expected a map of settings.");
  }
  ResolvedTrackers resolved = resolve_trackers(impl.setup, init_kwargs.value(), impl.is_main());
  impl.names = resolved.names();
  for (const SinkConfig& sink : resolved.own) impl.objects.push_back(sink.tracker);
  for (const std::string& info : resolved.infos) impl.logger.info(info);
  if (!impl.is_main()) {
    const auto is_main_only = [&](const SinkConfig& sink) {
      return sink.tracker ? sink.tracker->traits().main_process_only
                          : impl.setup.options.registry.at(sink.name).traits.main_process_only;
    };
    std::erase_if(resolved.built_in, is_main_only);
    std::erase_if(resolved.own, is_main_only);
  }
  if (impl.is_main() || impl.setup.options.per_rank_metrics || !resolved.built_in.empty() || !resolved.own.empty()) {
    impl.start_run(project, config.value(), resolved);
  }
  impl.initialised = true;
}

bool Trackers::is_running() const noexcept {
  return impl_->run != nullptr;
}

void Trackers::log(const Values& values, std::optional<int64_t> step, const Config& kwargs) {
  impl_->require_open("log");
  require_keys(values);
  const int64_t number = impl_->step_of(step);
  if (!impl_->is_logging()) return;
  impl_->run->queue.push(LogLine{unix_time_s(), number, values, kwargs.value(), {}});
  if (!impl_->run->queue.empty()) impl_->run->wake();
}

void Trackers::log_images(const ImageValues& images, std::optional<int64_t> step, const Config& kwargs) {
  impl_->require_open("log_images");
  for (const auto& [key, value] : images) require_keys({{key, 0}});
  const int64_t number = impl_->step_of(step);
  if (impl_->is_logging()) impl_->run->images.push({images, number, unix_time_s(), kwargs.value()});
}

void Trackers::log_table(const std::string& key, const Table& table, std::optional<int64_t> step,
                         const Config& kwargs) {
  impl_->require_open("log_table");
  require_keys({{key, 0}});
  core::Value rows = core::Value::list();
  for (const auto& row : table.rows) {
    if (row.size() != table.columns.size()) {
      throw UsageError(kRoom, "a row of the table '", key, "' has ", row.size(), " cells for ", table.columns.size(),
                       " columns; expected one each.");
    }
    rows.push_back(core::Value(row));
  }
  const int64_t number = impl_->step_of(step);
  if (!impl_->is_logging()) return;
  core::Value record = core::Value::map({{"op", "table"},
                                         {"t", unix_time_s()},
                                         {"step", number},
                                         {"key", key},
                                         {"columns", core::Value(table.columns)},
                                         {"data", rows}});
  if (!kwargs.value().empty()) record["kwargs"] = kwargs.value();
  impl_->push(record);
}

void Trackers::log_histogram(const std::string& key, const Histogram& h, std::optional<int64_t> step) {
  impl_->require_open("log_histogram");
  require_keys({{key, 0}});
  const int64_t number = impl_->step_of(step);
  if (!impl_->is_logging()) return;
  if (h.num == 0) {
    // A run that diverges goes on, and its other curves show where.
    if (impl_->empty_histograms.insert(key).second)
      impl_->run->warn(text("the histogram '", key, "' of step ", number, " has no finite value and is left out"));
    return;
  }
  impl_->push(core::Value::map({{"op", "histogram"},
                                {"t", unix_time_s()},
                                {"step", number},
                                {"key", key},
                                {"histogram", core::Value::map({{"min", h.min},
                                                                {"max", h.max},
                                                                {"num", h.num},
                                                                {"sum", h.sum},
                                                                {"sum_squares", h.sum_squares},
                                                                {"limits", core::Value(h.limits)},
                                                                {"counts", core::Value(h.counts)}})}}));
}

void Trackers::log_figure(const std::string& key, const std::filesystem::path& file, std::optional<int64_t> step) {
  impl_->require_open("log_figure");
  if (file.extension() != ".png") return log_artifact(file, key);
  require_keys({{key, 0}});
  if (!std::filesystem::is_regular_file(file))
    throw DataError(kRoom, file, file, " is no file; expected the figure '", key, "'. Write it first.");
  const int64_t number = impl_->step_of(step);
  if (!impl_->is_logging()) return;
  core::Value images = core::Value::map();
  images[key] = core::Value::list({std::filesystem::absolute(file).string()});
  impl_->push(core::Value::map({{"op", "images"}, {"t", unix_time_s()}, {"step", number}, {"images", images}}));
}

void Trackers::log_artifact(const std::filesystem::path& file, const std::string& artifact_path) {
  impl_->require_open("log_artifact");
  if (!impl_->is_logging()) return;
  if (!std::filesystem::is_regular_file(file))
    throw DataError(kRoom, file, file,
                    " is no file; expected an artifact. Correct the path; log_artifacts takes folders.");
  impl_->push(core::Value::map({{"op", "artifact"},
                                {"t", unix_time_s()},
                                {"path", std::filesystem::absolute(file).string()},
                                {"artifact_path", artifact_path}}));
}

void Trackers::log_artifacts(const std::filesystem::path& folder, const std::string& artifact_path) {
  impl_->require_open("log_artifacts");
  if (!impl_->is_logging()) return;
  if (!std::filesystem::is_directory(folder))
    throw DataError(kRoom, folder, folder, " is no folder; expected one with artifacts. Correct the path.");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const auto inner = std::filesystem::relative(entry.path().parent_path(), folder);
    log_artifact(entry.path(), (inner == "." ? std::filesystem::path(artifact_path) : artifact_path / inner).string());
  }
}

void Trackers::log_embedding(const std::string& key, Embedding embedding, std::optional<int64_t> step) {
  impl_->require_open("log_embedding");
  require_keys({{key, 0}});
  require_embedding(key, embedding);
  const int64_t number = impl_->step_of(step);
  if (!impl_->is_logging()) return;
  int64_t num_bytes = static_cast<int64_t>(embedding.values.size() * sizeof(float));
  for (const Image& image : embedding.images) num_bytes += static_cast<int64_t>(image.pixels.size());
  const double now = unix_time_s();
  const auto write = [key, number, now, data = std::make_shared<const Embedding>(std::move(embedding))](
                         const std::filesystem::path& folder) {
    const std::string place = "media/embeddings/" + embedding_folder(key, number);
    core::Value record =
        core::Value::map({{"op", "embedding"}, {"t", now}, {"step", number}, {"key", key}, {"folder", place}});
    record["files"] = to_value(write_embedding(folder / place, *data));
    return record;
  };
  impl_->run->images.push({.step = number, .time_s = now, .write = write, .num_bytes = num_bytes});
}

void Trackers::log_graph(const std::vector<GraphNode>& graph) {
  impl_->require_open("log_graph");
  if (!impl_->is_logging()) return;
  core::Value nodes = core::Value::list();
  for (const GraphNode& node : graph) {
    nodes.push_back(core::Value::map({{"name", node.name}, {"op", node.op}, {"inputs", core::Value(node.inputs)}}));
  }
  impl_->push(core::Value::map({{"op", "graph"}, {"t", unix_time_s()}, {"nodes", nodes}}));
}

void Trackers::note(const std::string& text, const std::string& level) noexcept {
  try {
    const std::lock_guard lock(impl_->run_mutex);
    if (impl_->run) impl_->run->write_note(text, level);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): a note is not worth ending the program for
  }
}

TrackerHandle Trackers::tracker(const std::string& name) const {
  impl_->require_started("get_tracker");
  const auto& names = impl_->names;
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    throw UsageError(kRoom, "no tracker '", name, "' is in use", guess_end(name, names), " In use are: ", join(names),
                     ".");
  }
  return TrackerHandle(*this, name);
}

std::vector<std::string> Trackers::names() const {
  return impl_->names;
}
std::vector<std::shared_ptr<Tracker>> Trackers::objects() const {
  return impl_->objects;
}
bool Trackers::is_used() const noexcept {
  return !impl_->setup.log_with.empty();
}
const std::string& Trackers::run_id() const noexcept {
  return impl_->run_id;
}
const std::filesystem::path& Trackers::run_folder() const noexcept {
  return impl_->folder;
}

void Trackers::finish(RunEnd end) noexcept {
  try {
    impl_->finish(end, true);
  } catch (const std::exception& error) {
    impl_->logger.warning(text("the end of the run could not be written: ", error.what()));
  }
}

core::Value Trackers::state() const {
  return core::Value::map(
      {{"run_id", impl_->run_id}, {"step", impl_->last_step}, {"calls_without_step", impl_->calls_without_step}});
}

void Trackers::load_state(const core::Value& state) {
  const core::Value* run_id = state.find("run_id");
  const core::Value* step = state.find("step");
  if (run_id == nullptr || step == nullptr || !run_id->is_string() || !step->is_int()) {
    throw UsageError(kRoom, "the state of trackers is ", state.to_json(),
                     "; expected run_id and step. Load one that state() has given.");
  }
  Impl& impl = *impl_;
  if (run_id->as_string().empty()) return;  // saved before init
  if (const auto* calls = state.find("calls_without_step"); calls != nullptr && calls->is_int())
    impl.calls_without_step = calls->as_int();
  impl.last_step = step->as_int();
  impl.said_back = false;
  if (!impl.initialised) {
    impl.resumed_run = run_id->as_string();
    impl.resumed_step = impl.last_step;
    return;
  }
  if (!impl.run) return;
  core::Value record = core::Value::map({{"op", "resume"}, {"t", unix_time_s()}, {"step", impl.last_step}});
  if (run_id->as_string() != impl.run_id) record["resumed_from"] = *run_id;
  impl.push(record);
}

void Trackers::count_step(int64_t num_samples) noexcept {
  if (!impl_->run) return;
  impl_->run->num_steps.fetch_add(1, std::memory_order_relaxed);
  impl_->run->num_samples.fetch_add(num_samples, std::memory_order_relaxed);
}

void Trackers::count_data_wait(double seconds) noexcept {
  if (impl_->run) impl_->run->wait_ns.fetch_add(static_cast<int64_t>(seconds * 1e9), std::memory_order_relaxed);
}

void Trackers::add_metrics(std::function<Values()> read) {
  if (impl_->run) impl_->run->add_metrics(read);
  impl_->metric_sources.push_back(std::move(read));
}

void TrackerHandle::log(const Values& values, std::optional<int64_t> step, const Config& kwargs) {
  auto& impl = *trackers_.impl_;
  impl.require_open("log");
  require_keys(values);
  const int64_t number = impl.step_of(step);
  core::Value map = core::Value::map();
  if (!kwargs.value().empty()) map[name_] = kwargs.value();
  if (impl.is_logging()) impl.run->queue.push(LogLine{unix_time_s(), number, values, map, {name_}});
}

void TrackerHandle::call(const std::string& function, const Config& arguments, const Config& keywords) {
  auto& impl = *trackers_.impl_;
  if (function.empty() || function.front() == '_') {
    throw UsageError(kRoom, "the function '", function, "' of tracker '", name_,
                     "'; expected a public name. Choose one without a leading '_'.");
  }
  if (!impl.is_logging()) return;
  impl.push(core::Value::map({{"op", "call"},
                              {"t", unix_time_s()},
                              {"only", core::Value::list({name_})},
                              {"function", function},
                              {"arguments", arguments.value()},
                              {"keywords", keywords.value()}}));
}

}  // namespace hasten::tracking
