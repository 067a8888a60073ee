// See sink.h.
#include "tracking/follower/sink.h"

#include <algorithm>
#include <limits>
#include <set>

#include "hasten/core/error.h"
#include "hasten/core/shell.h"
#include "tracking/journal/embedding.h"

namespace hasten::tracking {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kMostRecordsARound = 20000;

RunEnd end_of(const Record& record) {
  const core::Value* end = record.body.find("end");
  const std::string word = end != nullptr && end->is_string() ? end->as_string() : "finished";
  return word == "failed"        ? RunEnd::kFailed
         : word == "crashed"     ? RunEnd::kCrashed
         : word == "interrupted" ? RunEnd::kInterrupted
                                 : RunEnd::kFinished;
}

const core::Value& member(const core::Value& map, const char* key) {
  static const core::Value kNull;
  const core::Value* found = map.find(key);
  return found != nullptr ? *found : kNull;
}

std::string string_member(const core::Value& map, const char* key) {
  const core::Value& found = member(map, key);
  return found.is_string() ? found.as_string() : "";
}

// Returns true if a run was taken up again behind a place.
bool goes_on(const std::filesystem::path& journal, JournalPosition from) {
  JournalReader reader(journal, from);
  while (const auto record = reader.next()) {
    if (record->op == "resume") return true;
  }
  return false;
}

class TrackerSink : public Sink {
 public:
  using Sink::Sink;

 private:
  void open() {
    const auto& options = context_->options;
    tracker_ = config_.tracker ? config_.tracker
                               : options.registry.at(config_.name).make(config_.options, options.environment);
    tracker_->set_time_s(context_->run.start_time_s);
    if (!state_.state.is_null()) tracker_->resume(state_.state);
    tracker_->start(context_->run);
    reader_.emplace(options.journal, state_.position);
    save();
  }

  void say_warnings() {
    for (const std::string& warning : tracker_->take_warnings())
      context_->warn(text("the tracker '", config_.name, "': ", warning));
  }

  void save() {
    state_.state = tracker_->flush();
    say_warnings();
    state_.position = reader_->position();
    acknowledge();
  }

  bool advance() override {
    if (!tracker_) open();
    const auto until = Clock::now() + std::chrono::seconds(1);
    int num_records = 0;
    // Before the records: later writes are not waited for.
    const bool closing = context_->closing;
    while (!context_->abandoned && num_records < kMostRecordsARound && Clock::now() < until) {
      if (!pending_) pending_ = reader_->next();
      if (!pending_) break;
      deliver(*pending_);
      pending_.reset();
      ++num_records;
      if (state_.done) break;
    }
    if (num_records == 0 && closing && !state_.done) {
      tracker_->finish(RunEnd::kCrashed);
      state_.done = true;
    }
    if (num_records > 0 || state_.done) save();
    return num_records > 0;
  }

  // A tracker that was given as an object cannot be made anew: the record that failed is passed on again.
  void reset() override {
    if (config_.tracker && tracker_) return;
    tracker_.reset();
    pending_.reset();
    state_ = state();
  }

  void deliver(const Record& record) {
    if (!is_for_me(record)) return;
    tracker_->set_time_s(record.time_s);
    const core::Value& body = record.body;
    const int64_t step = record.step.value_or(0);
    const std::string key = string_member(body, "key");
    const core::Value& kwargs = member(member(body, "kwargs"), config_.name.c_str());
    bool shown = true;
    if (record.op == "log") {
      tracker_->log(values_of(member(body, "values")), step, kwargs);
    } else if (record.op == "config") {
      tracker_->store_init_configuration(member(body, "config"));
    } else if (record.op == "images") {
      shown = tracker_->log_images(images_of(member(body, "images")), step, kwargs);
    } else if (record.op == "table") {
      shown = tracker_->log_table(key, table_of(body), step, kwargs);
    } else if (record.op == "histogram") {
      shown = tracker_->log_histogram(key, histogram_of(member(body, "histogram")), step);
    } else if (record.op == "artifact") {
      shown = tracker_->log_artifact(path_of(string_member(body, "path")), string_member(body, "artifact_path"));
    } else if (record.op == "embedding") {
      shown = tracker_->log_embedding(
          key, embedding_files(member(body, "files"), path_of(string_member(body, "folder"))), step);
    } else if (record.op == "graph") {
      shown = tracker_->log_graph(graph_of(member(body, "nodes")));
    } else if (record.op == "call") {
      shown = tracker_->call(string_member(body, "function"), member(body, "arguments"), member(body, "keywords"));
    } else if (record.op == "note") {
      tracker_->note(string_member(body, "text"));
    } else if (record.op == "resume") {
      if (record.step) tracker_->rewind(step);
      state_.done = false;
    } else if (record.op == "finish") {
      tracker_->finish(end_of(record));
      state_.done = true;
    }
    say_warnings();
    if (!shown && not_shown_.insert(record.op).second) {
      context_->warn(text("the tracker '", config_.name, "' cannot show records of the kind '", record.op,
                          "'; they are in the journal and in media/."));
    }
  }

  std::filesystem::path path_of(const std::string& path) const {
    const std::filesystem::path given = path;
    return given.is_absolute() ? given : context_->options.journal.parent_path() / given;
  }

  ImageFiles images_of(const core::Value& map) const {
    ImageFiles files;
    if (!map.is_map()) return files;
    for (const auto& [key, paths] : map.as_map()) {
      auto& [name, list] = files.emplace_back();
      name = key;
      if (!paths.is_list()) continue;
      for (const core::Value& path : paths.as_list()) {
        if (path.is_string()) list.push_back(path_of(path.as_string()));
      }
      if (list.empty()) files.pop_back();
    }
    return files;
  }

  static Table table_of(const core::Value& body) {
    Table table;
    if (const auto& columns = member(body, "columns"); columns.is_list()) {
      for (const core::Value& column : columns.as_list())
        table.columns.push_back(column.is_string() ? column.as_string() : "");
    }
    if (const auto& rows = member(body, "data"); rows.is_list()) {
      for (const core::Value& row : rows.as_list()) {
        if (row.is_list()) table.rows.push_back(row.as_list());
      }
    }
    return table;
  }

  static Histogram histogram_of(const core::Value& body) {
    Histogram histogram;
    const auto real = [](const core::Value& value) { return value.is_number() ? value.as_double() : 0.0; };
    const auto reals = [&](const core::Value& list) {
      std::vector<double> numbers;
      if (list.is_list()) {
        for (const core::Value& number : list.as_list()) numbers.push_back(real(number));
      }
      return numbers;
    };
    histogram.min = real(member(body, "min"));
    histogram.max = real(member(body, "max"));
    histogram.num = real(member(body, "num"));
    histogram.sum = real(member(body, "sum"));
    histogram.sum_squares = real(member(body, "sum_squares"));
    histogram.limits = reals(member(body, "limits"));
    histogram.counts = reals(member(body, "counts"));
    return histogram;
  }

  static std::vector<GraphNode> graph_of(const core::Value& nodes) {
    std::vector<GraphNode> graph;
    if (!nodes.is_list()) return graph;
    for (const core::Value& node : nodes.as_list()) {
      GraphNode& one = graph.emplace_back(GraphNode{string_member(node, "name"), string_member(node, "op")});
      if (const auto& inputs = member(node, "inputs"); inputs.is_list()) {
        for (const core::Value& input : inputs.as_list())
          one.inputs.push_back(input.is_string() ? input.as_string() : "");
      }
    }
    return graph;
  }

  std::shared_ptr<Tracker> tracker_;
  std::optional<JournalReader> reader_;
  std::optional<Record> pending_;
  std::set<std::string> not_shown_;
};

}  // namespace

bool SinkContext::sleep(std::chrono::duration<double> time) {
  std::unique_lock lock(mutex);
  const bool was_closing = closing;
  changed.wait_for(lock, time, [&] { return abandoned.load() || closing != was_closing; });
  return !abandoned;
}

Sink::Sink(std::shared_ptr<SinkContext> context, SinkConfig config)
    : context_(std::move(context)),
      config_(std::move(config)),
      state_(read_ack(context_->options.journal, config_.name)) {
  state_.name = config_.name;
  state_.parked = false;
  state_.error.clear();
  if (state_.done) state_.done = !goes_on(context_->options.journal, state_.position);
  shown_ = state_;
}

SinkState Sink::state() const {
  const std::lock_guard lock(mutex_);
  return shown_;
}

void Sink::acknowledge() {
  write_ack(context_->options.journal, state_);
  progressed_ = true;
  const std::lock_guard lock(mutex_);
  shown_ = state_;
}

bool Sink::is_for_me(const Record& record) const {
  const core::Value* only = record.body.find("only");
  if (only == nullptr || !only->is_list()) return true;
  const auto& names = only->as_list();
  return std::any_of(names.begin(), names.end(),
                     [&](const core::Value& name) { return name == core::Value(config_.name); });
}

void Sink::park(const std::string& reason) {
  state_.parked = true;
  state_.error = reason;
  context_->warn(text("the tracker '", config_.name, "' is given up: ", reason,
                      " The journal keeps everything; later: hasten track sync ",
                      shell_word(context_->options.journal.parent_path().string()), " --to ",
                      shell_word(config_.name)));
  try {
    acknowledge();
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex_);
    shown_ = state_;
  }
}

void Sink::run() {
  const auto& options = context_->options;
  Seconds backoff(options.first_backoff_s);
  int failures = 0;
  bool is_reported = false;
  while (!context_->abandoned && !state_.done) {
    try {
      progressed_ = false;
      const bool moved = advance();
      failures = 0;
      backoff = Seconds(options.first_backoff_s);
      if (!moved && !state_.done) context_->sleep(options.poll_interval);
      continue;
    } catch (const UsageError& error) {
      // Waiting does not help: a wrong option, a missing client.
      park(error.what());
      break;
    } catch (const std::exception& error) {
      if (progressed_) failures = 0;
      if (!is_reported)
        context_->warn(text("the tracker '", config_.name, "' failed and is tried again: ", error.what()));
      is_reported = true;
      state_.error = error.what();
      if (++failures >= options.most_failures) {
        park(text(failures, " failures in a row, the last: ", error.what()));
        break;
      }
    }
    {
      const std::lock_guard lock(mutex_);
      shown_.error = state_.error;
    }
    reset();
    if (!context_->sleep(backoff)) break;
    backoff = std::min(backoff * 2, Seconds(options.most_backoff_s));
  }
  over_ = true;
  context_->changed.notify_all();
}

std::unique_ptr<Sink> make_tracker_sink(std::shared_ptr<SinkContext> context, SinkConfig config) {
  return std::make_unique<TrackerSink>(std::move(context), std::move(config));
}

RunInfo read_run_info(const Record& start, const std::filesystem::path& folder) {
  const auto integer = [&](const char* key) {
    const core::Value& value = member(start.body, key);
    return value.is_int() ? value.as_int() : 0;
  };
  RunInfo run{.project = string_member(start.body, "project"),
              .run_id = string_member(start.body, "run_id"),
              .folder = string_member(start.body, "folder"),
              .rank = static_cast<int>(integer("rank")),
              .world_size = static_cast<int>(std::max<int64_t>(1, integer("world_size"))),
              .pid = integer("pid"),
              .start_time_s = start.time_s};
  if (run.folder.empty() || !std::filesystem::exists(run.folder)) run.folder = folder;  // the folder was moved
  return run;
}

Values values_of(const core::Value& map) {
  Values values;
  if (!map.is_map()) return values;
  values.reserve(map.size());
  for (const auto& [key, value] : map.as_map()) {
    switch (value.kind()) {
      case core::Value::Kind::kBool:
        values.emplace_back(key, value.as_bool());
        break;
      case core::Value::Kind::kInt:
        values.emplace_back(key, value.as_int());
        break;
      case core::Value::Kind::kDouble:
        values.emplace_back(key, value.as_double());
        break;
      case core::Value::Kind::kString: {
        constexpr double kInfinity = std::numeric_limits<double>::infinity();
        const std::string& word = value.as_string();
        if (word == "NaN") {
          values.emplace_back(key, std::numeric_limits<double>::quiet_NaN());
        } else if (word == "Infinity" || word == "-Infinity") {
          values.emplace_back(key, word.front() == '-' ? -kInfinity : kInfinity);
        } else {
          values.emplace_back(key, word);
        }
        break;
      }
      case core::Value::Kind::kMap: {
        const core::Value* text = value.size() == 1 ? value.find("$text") : nullptr;
        if (text != nullptr && text->is_string()) {
          values.emplace_back(key, text->as_string());
        } else {
          values.emplace_back(key, values_of(value));
        }
        break;
      }
      default:
        break;  // null and lists are no values
    }
  }
  return values;
}

}  // namespace hasten::tracking
