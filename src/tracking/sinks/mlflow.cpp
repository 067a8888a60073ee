// See mlflow.h. Entries are gathered and sent when the follower flushes, about once a second. Sending a batch twice
// stores it once, so a follower that goes on from its last acknowledgement is exact. If the server refuses a batch, it
// is halved until the bad entry is alone. That entry is named and left out.
#include "tracking/sinks/mlflow.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <thread>

#include "hasten/core/error.h"
#include "hasten/core/http.h"
#include "hasten/core/number.h"
#include "hasten/core/strings.h"
#include "tracking/journal/json.h"
#include "tracking/sinks/mlflow_requests.h"

namespace hasten::tracking {
namespace {

const Origin kMlflow{"mlflow"};
constexpr size_t kMostWaiting = 4000;  // entries before they are sent without a flush

std::string string_at(const core::Value& map, const char* key) {
  const core::Value* found = map.find(key);
  return found != nullptr && found->is_string() ? found->as_string() : "";
}

// `key = value` below [mlflow] in ~/.mlflow/credentials.
std::pair<std::string, std::string> credentials_file(const Environment& environment) {
  std::pair<std::string, std::string> found;
  std::ifstream file(environment.text("HOME").value_or("") + "/.mlflow/credentials");
  for (std::string line; std::getline(file, line);) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::string_view all = line, key = core::trim(all.substr(0, equals)),
                           value = core::trim(all.substr(equals + 1));
    if (key == "mlflow_tracking_username") found.first = value;
    if (key == "mlflow_tracking_password") found.second = value;
  }
  return found;
}

std::string authorization(const Environment& environment) {
  auto user = environment.text("MLFLOW_TRACKING_USERNAME").value_or("");
  auto password = environment.text("MLFLOW_TRACKING_PASSWORD").value_or("");
  if (user.empty() && !environment.has("MLFLOW_TRACKING_TOKEN"))
    std::tie(user, password) = credentials_file(environment);
  if (!user.empty()) return http::basic_authorization(user, password);
  if (const auto token = environment.text("MLFLOW_TRACKING_TOKEN")) return "Bearer " + *token;
  return "";
}

http::ClientOptions client_options(const Environment& environment) {
  http::ClientOptions options{.needed_by = "the MLflow tracker", .max_body_bytes = 16 << 20};
  options.timeout = std::chrono::seconds(environment.integer("MLFLOW_HTTP_REQUEST_TIMEOUT", 1, 86400).value_or(120));
  options.verify = !environment.flag("MLFLOW_TRACKING_INSECURE_TLS").value_or(false);
  options.authority = environment.text("MLFLOW_TRACKING_SERVER_CERT_PATH").value_or("");
  options.certificate = environment.text("MLFLOW_TRACKING_CLIENT_CERT_PATH").value_or("");
  return options;
}

class Mlflow : public Tracker {
 public:
  Mlflow(core::Value options, const Environment& environment)
      : options_(std::move(options)),
        environment_(environment),
        uri_(environment.text("MLFLOW_TRACKING_URI").value_or("")),
        authorization_(authorization(environment)),
        client_(client_options(environment)) {
    while (!uri_.empty() && uri_.back() == '/') uri_.pop_back();
  }

  const TrackerTraits& traits() const noexcept override { return traits_; }

  void resume(const core::Value& state) override {
    run_id_ = string_at(state, "run_id");
    artifact_uri_ = string_at(state, "artifact_uri");
    if (const auto* ended = state.find("ended"); ended != nullptr && ended->is_bool()) ended_ = ended->as_bool();
  }

  void start(const RunInfo& run) override {
    run_ = run;
    if (!run_id_.empty()) return;
    const std::string given = environment_.text("MLFLOW_RUN_ID").value_or(string_at(options_, "run_id"));
    core::Value answer;
    if (!given.empty()) {
      answer = post("runs/update", core::Value::map({{"run_id", given}, {"status", "RUNNING"}}));
      answer = get("runs/get?run_id=" + http::percent_encoded(given));
    } else {
      answer = post("runs/create", core::Value::map({{"experiment_id", experiment(run.project)},
                                                     {"run_name", run_name()},
                                                     {"start_time", static_cast<int64_t>(run.start_time_s * 1e3)},
                                                     {"tags", run_tags()}}));
    }
    const core::Value* info = answer.find("run") != nullptr ? answer.find("run")->find("info") : nullptr;
    if (info == nullptr)
      throw CommError(kMlflow, "runs/create", uri_, " answered without a run: ", answer.to_json().substr(0, 200));
    run_id_ = string_at(*info, "run_id");
    artifact_uri_ = string_at(*info, "artifact_uri");
  }

  void store_init_configuration(const core::Value& config) override {
    for (const auto& [key, value] : flatten(config)) {
      std::string words;
      append_json(words, value);
      if (value.is_string()) words = value.as_string();
      const std::string name = mapped(key);
      if (words.size() > mlflow::kMostParamBytes) {
        warn(text("the setting '", key, "' has ", words.size(), " bytes, and a param takes ", mlflow::kMostParamBytes,
                  "; it is the artifact params/", name, ".txt"));
        put_artifact("params/" + name + ".txt", words);
      } else {
        waiting_.params.push_back({name, words});
      }
    }
  }

  void log(const Values& values, int64_t step, const core::Value&) override {
    const auto timestamp_ms = static_cast<int64_t>(time_s() * 1e3);
    for (const auto& [key, value] : flatten(values)) {
      if (value.kind() == Value::Kind::kString) {
        waiting_.tags.push_back({"text/" + mapped(key), value.as_string()});
      } else {
        waiting_.metrics.push_back({mapped(key), value.as_number(), timestamp_ms, step});
      }
    }
    if (waiting_.size() >= kMostWaiting) send_waiting();
  }

  bool log_images(const ImageFiles& images, int64_t step, const core::Value&) override {
    const auto timestamp_ms = static_cast<int64_t>(time_s() * 1e3);
    for (const auto& [key, paths] : images) {
      for (const auto& path : paths) put_file(mlflow::image_path(key, step, timestamp_ms, path.stem().string()), path);
    }
    if (!images_tagged_) waiting_.tags.push_back({"mlflow.loggedImages", "True"});
    images_tagged_ = true;
    return true;
  }

  bool log_table(const std::string& key, const Table& table, int64_t, const core::Value&) override {
    core::Value rows = core::Value::list();
    for (const auto& row : table.rows) rows.push_back(core::Value(row));
    std::string body;
    append_json(body, core::Value::map({{"columns", core::Value(table.columns)}, {"data", rows}}));
    const std::string path = mapped(key) + ".json";
    put_artifact(path, body);
    const auto same = [&](const core::Value& one) { return string_at(one, "path") == path; };
    if (std::none_of(tables_.as_list().begin(), tables_.as_list().end(), same)) {
      tables_.push_back(core::Value::map({{"path", path}, {"type", "table"}}));
      waiting_.tags.push_back({"mlflow.loggedArtifacts", tables_tag()});
    }
    return true;
  }

  bool log_artifact(const std::filesystem::path& path, const std::string& artifact_path) override {
    put_file((artifact_path.empty() ? "" : artifact_path + "/") + path.filename().string(), path);
    return true;
  }

  bool rewind(int64_t) override {
    post("runs/update", core::Value::map({{"run_id", run_id_}, {"status", "RUNNING"}}));
    ended_ = false;
    return true;
  }

  core::Value flush() override {
    send_waiting();
    return core::Value::map({{"run_id", run_id_}, {"artifact_uri", artifact_uri_}, {"ended", ended_}});
  }

  void finish(RunEnd end) override {
    send_waiting();
    const char* status = end == RunEnd::kFinished ? "FINISHED" : end == RunEnd::kFailed ? "FAILED" : "KILLED";
    post("runs/update",
         core::Value::map(
             {{"run_id", run_id_}, {"status", status}, {"end_time", static_cast<int64_t>(time_s() * 1e3)}}));
    ended_ = true;
  }

 private:
  std::string mapped(const std::string& key) {
    std::string changed;
    std::string name = keys_.map(key, changed);
    if (!changed.empty()) warn(std::move(changed));
    return name;
  }

  http::Response send(http::Request request) {
    if (!authorization_.empty()) request.headers.emplace_back("Authorization", authorization_);
    for (int attempt = 0;; ++attempt) {
      http::Response response = client_.send(request);
      // Other failures are repeated by the follower.
      const int wait_s = core::whole_number<int>(response.header("retry-after")).value_or(0);
      if ((response.status != 429 && response.status != 503) || wait_s <= 0 || wait_s > 60 || attempt == 7)
        return response;
      std::this_thread::sleep_for(std::chrono::seconds(wait_s));
    }
  }

  core::Value parsed(const http::Response& response, const std::string& call) const {
    if (response.ok()) return read_json(response.body).value_or(core::Value());
    const std::string words =
        text(uri_, " (", call, "): ",
             response.status == 0 ? response.error
                                  : text("HTTP status ", response.status, ", ", response.body.substr(0, 300)));
    if (response.status == 401 || response.status == 403) {
      throw UsageError(kMlflow, words,
                       ". Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN.");
    }
    throw CommError(kMlflow, call, words);
  }

  std::string api(const std::string& call) const { return uri_ + "/api/2.0/mlflow/" + call; }
  http::Response send_post(const std::string& call, std::string body) {
    return send({.method = "POST",
                 .url = api(call),
                 .headers = {{"Content-Type", "application/json"}},
                 .body = std::move(body)});
  }
  core::Value post(const std::string& call, const core::Value& body) {
    std::string json;
    append_json(json, body);
    return parsed(send_post(call, std::move(json)), call);
  }
  core::Value get(const std::string& call) { return parsed(send({.url = api(call)}), call); }

  std::string experiment(const std::string& project) {
    const std::string fallback = string_at(options_, "experiment_name");
    const std::string name =
        environment_.text("MLFLOW_EXPERIMENT_NAME").value_or(fallback.empty() ? project : fallback);
    const std::string call = "experiments/get-by-name?experiment_name=" + http::percent_encoded(name);
    for (int attempt = 0; attempt < 2; ++attempt) {
      const http::Response found = send({.url = api(call)});
      if (found.status != 404) {
        const core::Value answer = parsed(found, "experiments/get-by-name");
        if (const auto* one = answer.find("experiment")) return string_at(*one, "experiment_id");
      }
      core::Value fields = core::Value::map({{"name", name}});
      if (const std::string place = string_at(options_, "logging_dir"); !place.empty())
        fields["artifact_location"] = place;
      std::string json;
      append_json(json, fields);
      const http::Response made = send_post("experiments/create", std::move(json));
      if (made.ok()) return string_at(parsed(made, "experiments/create"), "experiment_id");
      if (made.body.find("_ALREADY_EXISTS") == std::string::npos) parsed(made, "experiments/create");
    }
    throw CommError(kMlflow, "experiments/create", uri_, " neither has nor makes the experiment '", name, "'");
  }

  std::string run_name() const {
    const std::string given = string_at(options_, "run_name");
    return given.empty() ? run_.run_id : given;
  }

  core::Value run_tags() const {
    core::Value tags = core::Value::list();
    const auto add = [&](const std::string& key, const std::string& value) {
      if (!value.empty()) tags.push_back(core::Value::map({{"key", key}, {"value", value}}));
    };
    add("mlflow.user", environment_.text("USER").value_or(environment_.text("LOGNAME").value_or("")));
    add("mlflow.runName", run_name());
    add("hasten.run_id", run_.run_id);
    add("mlflow.note.content", string_at(options_, "description"));
    const bool nested = environment_.flag("MLFLOW_NESTED_RUN")
                            .value_or(options_.find("nested_run") != nullptr &&
                                      options_.find("nested_run")->is_bool() && options_.find("nested_run")->as_bool());
    if (nested) add("mlflow.parentRunId", string_at(options_, "parent_run_id"));
    core::Value own = options_.find("tags") != nullptr ? *options_.find("tags") : core::Value();
    if (const auto json = environment_.text("MLFLOW_TAGS")) own = core::Value::parse_json(*json, "MLFLOW_TAGS");
    if (own.is_map()) {
      for (const auto& [key, value] : own.as_map()) add(key, value.is_string() ? value.as_string() : value.to_json());
    }
    return tags;
  }

  // With the blanks of Python's json, since the client searches for this text.
  std::string tables_tag() const {
    std::string tag;
    for (const core::Value& one : tables_.as_list()) {
      tag += tag.empty() ? "[{\"path\": " : ", {\"path\": ";
      append_json_string(tag, string_at(one, "path"));
      tag += ", \"type\": \"table\"}";
    }
    return tag + "]";
  }

  void send_waiting() {
    for (const mlflow::Batch& batch : mlflow::split(waiting_)) send_batch(batch);
    waiting_ = {};
  }

  void send_batch(const mlflow::Batch& batch) {
    const http::Response response = send_post("runs/log-batch", mlflow::log_batch_body(run_id_, batch));
    if (response.ok()) return;
    const bool is_refused = response.status == 400 || response.status == 413 || response.status == 422;
    if (!is_refused) {
      parsed(response, "runs/log-batch");
    } else if (batch.size() > 1) {
      for (const mlflow::Batch& half : mlflow::halves(batch)) send_batch(half);
    } else {
      warn(text("the server refused the ", mlflow::describe(batch),
                ", which is left out: ", response.body.substr(0, 200)));
    }
  }

  // Where a file of the run goes: an address of the server, or a path on this host.
  std::string artifact_target(const std::string& path) const {
    constexpr std::string_view kScheme = "mlflow-artifacts:";
    if (artifact_uri_.starts_with(kScheme)) {
      std::string inner = artifact_uri_.substr(kScheme.size());
      std::string server = uri_;
      if (inner.starts_with("//")) {  // a server of its own
        const size_t slash = inner.find('/', 2);
        server = "http:" + inner.substr(0, slash);
        inner = slash == std::string::npos ? "" : inner.substr(slash);
      }
      return server + "/api/2.0/mlflow-artifacts/artifacts" + http::percent_encoded(inner + "/" + path, "/");
    }
    if (artifact_uri_.starts_with("file://")) return artifact_uri_.substr(7) + "/" + path;
    if (artifact_uri_.starts_with("/")) return artifact_uri_ + "/" + path;
    return "";
  }

  void put(const std::string& path, http::Request request) {
    const std::string target = artifact_target(path);
    if (target.empty()) {
      if (!refused_artifacts_) {
        warn(text("files of this run go to ", artifact_uri_,
                  ", which hasten cannot write. Start the server with --serve-artifacts, or use the "
                  "Python client (MLFLOW_TRACKING_URI without http)"));
      }
      refused_artifacts_ = true;
    } else if (target.starts_with("http")) {
      request.method = "PUT";
      request.url = target;
      request.headers = {{"Content-Type", "application/octet-stream"}, {"Expect", ""}};
      parsed(send(std::move(request)), "mlflow-artifacts");
    } else {
      std::filesystem::create_directories(std::filesystem::path(target).parent_path());
      if (!request.body_file.empty()) {
        std::filesystem::copy_file(request.body_file, target, std::filesystem::copy_options::overwrite_existing);
      } else {
        std::ofstream(target, std::ios::binary) << request.body;
      }
    }
  }
  void put_artifact(const std::string& path, std::string bytes) { put(path, {.body = std::move(bytes)}); }
  void put_file(const std::string& path, const std::filesystem::path& file) {
    if (!std::filesystem::is_regular_file(file))
      return warn(text("the file ", file, " is not there any more and is left out"));
    put(path, {.body_file = file});
  }

  const TrackerTraits traits_ = {"mlflow"};
  const core::Value options_;
  const Environment environment_;
  std::string uri_;
  const std::string authorization_;
  http::Client client_;
  RunInfo run_;
  std::string run_id_, artifact_uri_;
  mlflow::KeyMap keys_;
  mlflow::Batch waiting_;
  core::Value tables_ = core::Value::list();
  bool images_tagged_ = false, refused_artifacts_ = false, ended_ = false;
};

}  // namespace

std::vector<std::string> mlflow_options() {
  return {"experiment_name", "logging_dir", "run_id", "tags", "nested_run", "parent_run_id", "run_name", "description"};
}

std::unique_ptr<Tracker> make_mlflow(const core::Value& options, const Environment& environment) {
  return std::make_unique<Mlflow>(options, environment);
}

}  // namespace hasten::tracking
