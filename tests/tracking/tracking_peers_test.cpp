// The peers' own programs read what the trackers write: TensorBoard, an MLflow server and its client, Accelerate's
// classes. They run with HASTEN_PEERS_PYTHON, and Python clients with HASTEN_TRACKER_PYTHON; without these the tests
// are skipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "hasten/core/http.h"
#include "hasten/tracking/board/commands.h"
#include "support/python.h"
#include "tracking/follower/child.h"
#include "tracking/journal/json.h"
#include "tracking/journal/png.h"
#include "tracking/sinks/event_file.h"
#include "tracking/sinks/summary.h"
#include "tracking/tracking_support.h"

namespace hasten::tracking {
namespace {

using ::testing::HasSubstr;

const std::string kPeers = HASTEN_SOURCE_DIR "/tests/tracking/peers/";

class TrackingPeers : public hasten::testing::InFolder {
 protected:
  void SetUp() override {
    const auto why = hasten::testing::why_without_python("HASTEN_PEERS_PYTHON", {"accelerate", "tensorboard"});
    if (!why.empty()) GTEST_SKIP() << why;
    python_ = *Environment::current().text("HASTEN_PEERS_PYTHON");
  }

  // What a script prints.
  std::string run(const std::vector<std::string>& words, const std::map<std::string, std::string>& more = {}) const {
    std::vector<std::string> arguments = {python_};
    arguments.insert(arguments.end(), words.begin(), words.end());
    Child child({.arguments = arguments, .environment = environment_with(more), .error_file = path("errors")});
    std::string output;
    while (!child.output_ended()) {
      for (const std::string& line : child.read_lines(std::chrono::milliseconds(100))) output += line + "\n";
    }
    child.wait(std::chrono::seconds(10));
    if (output.empty()) ADD_FAILURE() << text_of(path("errors"));
    return output;
  }
  core::Value read(const std::vector<std::string>& words) const {
    return read_json(run(words)).value_or(core::Value());
  }

  std::string python_;
};

std::string hex_of(const std::string& bytes) {
  std::string out;
  for (const char byte : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(byte));
    out += two;
  }
  return out;
}

TEST_F(TrackingPeers, SummariesAreTorchsByteForByte) {
  const std::string theirs = run({kPeers + "summaries.py"});
  const std::vector<double> values = {-1.0, 0.0, 0.5, 0.5, 3.0, 1e-14, 250.0};

  EXPECT_THAT(theirs, HasSubstr("scalar " + hex_of(summary::scalar("train/loss", 0.25F)) + "\n"));
  EXPECT_THAT(theirs, HasSubstr("zero " + hex_of(summary::scalar("zero", 0.0F)) + "\n"));
  EXPECT_THAT(theirs, HasSubstr("text " + hex_of(summary::text("note", "hello **you**")) + "\n"));
  EXPECT_THAT(theirs, HasSubstr("histogram " +
                                hex_of(summary::histogram("weights", histogram(values.data(), values.size()))) + "\n"));
}

TEST_F(TrackingPeers, EmbeddingsAreTorchsFiles) {
  run({kPeers + "summaries.py", path("theirs")});
  Embedding points{.num_dims = 2,
                   .values = {1, 0.5F, -2, 0.1F, 1e-8F, 123456.789F, 7, 9, 2, 3},
                   .metadata = {{"a", "0"}, {"b", "1"}, {"c", "2"}, {"d", "3"}, {"e", "4"}},
                   .columns = {"name", "class"}};
  for (int i = 0; i < 5; ++i)
    points.images.push_back({4, 4, 3, std::vector<uint8_t>(48, static_cast<uint8_t>(50 * i))});
  Trackers trackers(setup_in(folder_, {"tensorboard"}));
  trackers.init("p");
  trackers.log_embedding("net/last", points, 42);
  trackers.finish();

  const auto ours = folder_ / "p/run", theirs = folder_ / "theirs";
  for (const char* name : {"00042/net%2flast/metadata.tsv", "projector_config.pbtxt"})
    EXPECT_EQ(text_of(ours / name), text_of(theirs / name)) << name;
  std::istringstream numbers(text_of(ours / "00042/net%2flast/tensors.tsv")),
      their_numbers(text_of(theirs / "00042/net%2flast/tensors.tsv"));
  double mine = 0, other = 0;
  int count = 0;
  while (numbers >> mine && their_numbers >> other)
    EXPECT_EQ(static_cast<float>(mine), static_cast<float>(other)) << count++;
  EXPECT_FALSE(their_numbers >> other);
  const Image sprite = decode_png(text_of(ours / "00042/net%2flast/sprite.png"), "ours"),
              their = decode_png(text_of(theirs / "00042/net%2flast/sprite.png"), "theirs");
  EXPECT_EQ(sprite.width, their.width);
  EXPECT_EQ(sprite.height, their.height);
  EXPECT_EQ(sprite.pixels, their.pixels);
}

TEST_F(TrackingPeers, TensorBoardReadsEveryKind) {
  Trackers trackers(setup_in(folder_, {"tensorboard"}));
  trackers.init("p", {{"lr", 0.5}, {"opt", {{"name", "adam"}}}, {"amp", true}});
  for (int step = 0; step < 20; ++step)
    trackers.log(
        {{"train/loss", 1.0 / (1 + step)}, {"nan", std::nan("")}, {"note", "**hi**"}, {"Loss", {{"val", 2.0}}}}, step);
  trackers.log_images({{"input", std::vector<Image>(9, Image{2, 3, 3, std::vector<uint8_t>(18, 9)})}}, 19);
  const double numbers[] = {-1, 0, 2};
  trackers.log_histogram("weights", histogram(numbers, 3), 19);
  trackers.log_table("table", {{"a", "b"}, {{1, "x"}}}, 19);
  trackers.log_graph({{"input", "Input", {}}, {"net/fc", "Linear", {"input"}}});
  trackers.finish();

  const auto found = read({kPeers + "read_tensorboard.py", path("p/run")});
  const auto group = read({kPeers + "read_tensorboard.py", path("p/run/Loss_val")});

  EXPECT_EQ(found.at("scalars").at("train/loss").size(), 20u);
  EXPECT_EQ(found.at("scalars").at("train/loss").as_list()[1].to_json(), R"([1,"0.5"])");
  EXPECT_EQ(found.at("scalars").at("nan").as_list()[0].to_json(), R"([0,"nan"])");
  EXPECT_EQ(group.at("scalars").at("Loss").size(), 20u);
  EXPECT_EQ(found.at("texts").at("note/text_summary").as_list()[0].to_json(), R"([0,"**hi**"])");
  EXPECT_THAT(found.at("texts").to_json(), HasSubstr("| a | b |"));
  EXPECT_EQ(found.at("images").at("input").to_json(), "[[19,16,6]]");
  EXPECT_EQ(found.at("histograms").at("weights").as_list()[2].as_double(), 3);
  EXPECT_EQ(found.at("nodes").to_json(), R"(["input","net/fc"])");
  EXPECT_EQ(found.at("hparams").at("session_start_info").to_json(), R"(["amp","lr","opt/name"])");
  EXPECT_TRUE(found.at("hparams").contains("session_end_info"));
  EXPECT_THAT(found.at("hparams").at("metrics").to_json(), HasSubstr("train/loss"));
}

TEST_F(TrackingPeers, TensorBoardDropsWhatCameBehindACheckpoint) {
  {
    Trackers first(setup_in(folder_, {"tensorboard"}));
    first.init("p");
    for (int step = 0; step < 10; ++step) first.log({{"x", step}}, step);
    first.finish();
  }
  Trackers second(setup_in(folder_, {"tensorboard"}));
  second.load_state(core::Value::map({{"run_id", "run"}, {"step", 4}}));
  second.init("p");
  for (int step = 5; step < 8; ++step) second.log({{"x", step + 100}}, step);
  second.finish();

  const auto x = read({kPeers + "read_tensorboard.py", path("p/run")}).at("scalars").at("x");

  ASSERT_EQ(x.size(), 8u);
  EXPECT_EQ(x.as_list()[4].to_json(), R"([4,"4.0"])");
  EXPECT_EQ(x.as_list()[7].to_json(), R"([7,"107.0"])");
}

// A real server on a free port of the loopback address.
class MlflowServer {
 public:
  MlflowServer(std::string python, std::filesystem::path folder)
      : python_(std::move(python)), folder_(std::move(folder)) {
    start();
  }
  ~MlflowServer() { kill(); }
  void start() {
    server_ = std::make_unique<Child>(ChildOptions{
        .arguments = {python_, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", port_, "--workers", "1",
                      "--backend-store-uri", "sqlite:///" + (folder_ / "mlflow.db").string(), "--artifacts-destination",
                      (folder_ / "artifacts").string(), "--serve-artifacts"},
        // Runs no jobs: their executors are further Pythons, which take a loaded machine minutes to start.
        .environment =
            environment_with({{"MLFLOW_DISABLE_TELEMETRY", "true"}, {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false"}}),
        .error_file = folder_ / "server.log"});
    http::Client client({.timeout = std::chrono::seconds(10), .use_proxy = false});
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(250);
    while (std::chrono::steady_clock::now() < until && !server_->wait()) {
      if (client.send({.url = uri() + "/health"}).status == 200) return;
      server_->read_lines(std::chrono::milliseconds(100));
    }
    ADD_FAILURE() << "the server is not ready after 250 s, or has ended:\n" << text_of(folder_ / "server.log");
  }
  void kill() {
    server_->kill();
    server_->wait(std::chrono::seconds(10));
  }
  std::string uri() const { return "http://127.0.0.1:" + port_; }

 private:
  const std::string python_;
  const std::filesystem::path folder_;
  const std::string port_ = std::to_string(20000 + getpid() % 20000);
  std::unique_ptr<Child> server_;
};

TEST_F(TrackingPeers, AnMlflowServerThatIsKilledInMidRunHasEverythingOnceInTheEnd) {
  std::filesystem::create_directories(folder_ / "server");
  MlflowServer server(python_, folder_ / "server");
  auto setup = setup_in(folder_, {"mlflow"});
  setup.environment = environment_with({{"MLFLOW_TRACKING_URI", server.uri()}});
  Trackers trackers(setup);
  trackers.init("fashion", {{"lr", 0.5}, {"opt", {{"name", "adam"}}}});
  for (int step = 0; step < 100; ++step)
    trackers.log({{"loss", 1.0 * step}, {"nan", std::nan("")}, {"word", "hi"}}, step);
  trackers.log_images({{"in/put", Image{1, 1, 1, {5}}}}, 99);
  const auto ack = [&] { return read_ack(folder_ / "fashion/run/journal.jsonl", "mlflow").position.offset; };
  for (int i = 0; i < 600 && ack() < 10000; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  server.kill();
  for (int step = 100; step < 200; ++step) trackers.log({{"loss", 1.0 * step}}, step);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  server.start();
  trackers.log_table("table", {{"a", "b"}, {{1, "x"}, {2, "y"}}}, 199);
  trackers.log_artifact(write("model.bin", std::string(3000, 'm')), "models");
  trackers.finish();

  const auto run = read({kPeers + "read_mlflow.py", server.uri(), "fashion"});

  EXPECT_EQ(run.at("num_runs").as_int(), 1);
  EXPECT_EQ(run.at("status").as_string(), "FINISHED");
  EXPECT_EQ(run.at("metrics").at("loss").size(), 200u);
  EXPECT_EQ(run.at("metrics").at("nan").size(), 100u);
  EXPECT_EQ(run.at("params").at("opt/name").as_string(), "adam");
  EXPECT_EQ(run.at("tags").at("text/word").as_string(), "hi");
  EXPECT_EQ(run.at("table").to_json(), R"([[1,"x"],[2,"y"]])");
  EXPECT_EQ(run.at("artifacts").at("models/model.bin").as_int(), 3000);
  EXPECT_THAT(run.at("artifacts").to_json(), HasSubstr("images/in~put+step+99+timestamp+"));
}

// The lines that a fake client has recorded.
std::string bridge_calls(const std::filesystem::path& folder, const std::string& name, const std::string& python) {
  auto setup = setup_in(folder, {"journal"});
  Trackers trackers(setup);
  trackers.init("p", {{"lr", 0.5}, {"net", "cnn"}});
  trackers.log({{"train_loss", 1.5}, {"n", 2}}, 3);
  trackers.log({{"train_loss", 1.25}, {"n", 3}}, 4);
  trackers.finish();
  core::Value options;
  if (name == "wandb" || name == "swanlab" || name == "trackio") options = core::Value::map({{"mode", "offline"}});
  const std::string calls = folder / "ours";
  std::string said;
  Follower follower(
      {.journal = folder / "p/run/journal.jsonl",
       .sinks = {{.name = name, .options = options, .tracker = {}}},
       .environment = environment_with(
           {{"HASTEN_TRACKER_PYTHON", python}, {"PYTHONPATH", kPeers + "fake_clients"}, {"FAKE_CLIENT_CALLS", calls}}),
       .warn = [&](const std::string& line) { said += line + "\n"; }});
  follower.close();
  EXPECT_TRUE(follower.wait(std::chrono::seconds(60))) << said << text_of(folder / "p/run" / (name + ".log"));
  return text_of(calls);
}

class TrackingPeersCalls : public TrackingPeers, public ::testing::WithParamInterface<const char*> {};

TEST_P(TrackingPeersCalls, AreThoseOfAcceleratesClass) {
  const std::string name = GetParam();
  const std::string theirs_file = path("theirs");
  run({"-c", "import subprocess, sys; subprocess.run([sys.executable] + sys.argv[1:], check=True); print('done')",
       kPeers + "accelerate_calls.py", name, theirs_file, folder_});

  EXPECT_EQ(bridge_calls(folder_, name, python_), text_of(theirs_file));
}
// DVCLive is told of the next step where the step changes, not after every call: with a call a step this is the same.
INSTANTIATE_TEST_SUITE_P(Clients, TrackingPeersCalls,
                         ::testing::Values("wandb", "comet_ml", "swanlab", "trackio", "clearml", "aim", "dvclive"));

// The clients themselves, offline.
class TrackingPeersOffline : public hasten::testing::InFolder, public ::testing::WithParamInterface<const char*> {};

TEST_P(TrackingPeersOffline, TakesARunWithoutAComplaint) {
  const std::string name = GetParam();
  if (const auto why = hasten::testing::why_without_python("HASTEN_TRACKER_PYTHON", {name}); !why.empty())
    GTEST_SKIP() << why;
  const auto python = Environment::current().text("HASTEN_TRACKER_PYTHON");
  std::filesystem::create_directories(folder_ / "client");
  auto setup = setup_in(folder_, {name});
  setup.environment = environment_with({{"HASTEN_TRACKER_PYTHON", *python},
                                        {"WANDB_MODE", "offline"},
                                        {"WANDB_DIR", path("client")},
                                        {"WANDB_SILENT", "true"},
                                        {"COMET_OFFLINE_DIRECTORY", path("client")},
                                        {"CLEARML_OFFLINE_MODE", "1"},
                                        {"HOME", path("client")},
                                        {"DVCLIVE_LOGLEVEL", "ERROR"},
                                        {"SWANLAB_MODE", "offline"},
                                        {"SWANLAB_LOG_DIR", path("client")},
                                        {"TRACKIO_DIR", path("client")}});
  Config options = core::Value::map();
  if (name == "comet_ml") options = {{"online", false}};
  if (name == "dvclive") options = {{"dir", path("client/dvclive")}, {"save_dvc_exp", false}};
  if (name == "swanlab") options = {{"mode", "offline"}, {"logdir", path("client/swan")}};
  core::Value all = core::Value::map();
  if (name == "aim") options = {{"repo", path("client")}};
  all[name] = options.value();
  Trackers trackers(setup);
  trackers.init("p", {{"lr", 0.5}, {"net", "cnn"}}, all);
  for (int step = 0; step < 100; ++step) trackers.log({{"train_loss", 1.0 / (1 + step)}}, step);
  trackers.log_images({{"input", Image{8, 8, 3, std::vector<uint8_t>(192, 50)}}}, 99);
  trackers.finish();

  const auto status = read_status(folder_ / "p/run/journal.jsonl");

  ASSERT_EQ(status.sinks.size(), 1u);
  EXPECT_TRUE(status.sinks[0].state.done)
      << status.sinks[0].state.error << text_of(folder_ / "p/run" / (name + ".log"));
  EXPECT_EQ(text_of(folder_ / "p/run/journal.jsonl").find("left out"), std::string::npos);
  EXPECT_FALSE(std::filesystem::is_empty(folder_ / "client"));
}
INSTANTIATE_TEST_SUITE_P(Clients, TrackingPeersOffline,
                         ::testing::Values("wandb", "comet_ml", "dvclive", "swanlab", "clearml", "aim", "trackio"));

}  // namespace
}  // namespace hasten::tracking
