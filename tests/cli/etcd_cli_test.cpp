// `hasten launch --rdzv_backend etcd` with a real etcd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <memory>

#include "cli/launch_folder.h"
#include "hasten/launch/base/port.h"
#include "launch/rendezvous/http.h"

namespace hasten {
namespace {

using test::Command;
using test::CommandResult;
using ::testing::HasSubstr;

class Etcd : public test::LaunchFolder {
 protected:
  using Words = std::vector<std::string>;

  void start_server(const std::string& protocol = "http", const Words& more = {}) {
    const std::string client = protocol + "://127.0.0.1:" + port_;
    const std::string peer = "http://127.0.0.1:" + std::to_string(launcher::free_port());
    Words all = {"/usr/bin/etcd",
                 "--data-dir",
                 folder() / "etcd",
                 "--listen-client-urls",
                 client,
                 "--advertise-client-urls",
                 client,
                 "--listen-peer-urls",
                 peer,
                 "--initial-advertise-peer-urls",
                 peer,
                 "--initial-cluster",
                 "default=" + peer,
                 "--logger",
                 "zap",
                 "--log-outputs",
                 "stdout"};
    all.insert(all.end(), more.begin(), more.end());
    server_ = std::make_unique<Command>(all);
    std::string line = "-";
    while (!line.empty() && line.find("serving client traffic") == std::string::npos) line = server_->read_line();
    ASSERT_FALSE(line.empty()) << "no etcd (apt install etcd-server)";
  }
  void stop_server() {
    kill(server_->pid(), SIGTERM);
    server_->finish();
    server_.reset();
  }

  std::vector<std::string> node(const std::string& backend, const std::string& script,
                                const std::string& conf = "last_call_timeout=0.5") const {
    return script_words({"--nnodes", "1:3", "--rdzv_backend", backend, "--rdzv_endpoint", "127.0.0.1:" + port_,
                         "--rdzv_id", "job", "--rdzv_conf", conf},
                        script);
  }
  // As run_command, while the server is a child of this program, too: a Command that is destroyed waits for
  // all.
  CommandResult run_beside_server(const Words& words, const std::map<std::string, std::string>& variables) {
    commands_.push_back(std::make_unique<Command>(words, variables));
    return commands_.back()->finish();
  }
  static void end(Command& command) {
    kill(command.pid(), SIGTERM);
    EXPECT_EQ(command.finish().exit_code, 143);
  }

  static constexpr const char* kWork = "echo $RANK/$WORLD_SIZE; exec sleep 1000";
  const std::string port_ = std::to_string(launcher::free_port());
  std::vector<std::unique_ptr<Command>> commands_;
  std::unique_ptr<Command> server_;
};

TEST_F(Etcd, NodesFindEachOtherAndTakeTheHostsPlace) {
  for (const std::string backend : {"etcd", "etcd-v2"}) {
    start_server();
    auto first = std::make_unique<Command>(node(backend, kWork), environment());
    EXPECT_EQ(first->read_line(), "0/1");
    auto second = std::make_unique<Command>(node(backend, kWork), environment());
    EXPECT_EQ(first->read_line(), "0/2");
    EXPECT_EQ(second->read_line(), "1/2");

    kill(first->pid(), SIGKILL);
    first->finish();

    EXPECT_EQ(second->read_line(), "0/1");
    auto third = std::make_unique<Command>(node(backend, kWork), environment());
    EXPECT_EQ(second->read_line(), "0/2");
    end(*third);
    end(*second);
    stop_server();  // before the commands above are destroyed, which wait for all children
  }
}

TEST_F(Etcd, TheServerMayAskForCertificates) {
  // One certificate for all: it has signed itself, and is the server's and the clients'.
  const std::string certificate = folder() / "certificate.pem", key = folder() / "key.pem";
  const CommandResult made =
      test::run_command({"/usr/bin/openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                         "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=hasten", "-addext",
                         "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  start_server("https",
               {"--cert-file", certificate, "--key-file", key, "--client-cert-auth", "--trusted-ca-file", certificate});
  const std::string trusting = "join_timeout=5,protocol=https,cacert=" + certificate;

  const CommandResult good = run_beside_server(
      node("etcd", "echo $RANK/$WORLD_SIZE", trusting + ",last_call_timeout=0,cert=" + certificate + ",key=" + key),
      environment());
  const CommandResult without_certificate =
      run_beside_server(node("etcd", "echo never", trusting + ",join_timeout=0.5"), environment());
  const CommandResult without_trust =
      run_beside_server(node("etcd", "echo never", "join_timeout=0.5,protocol=https"), environment());
  stop_server();

  EXPECT_EQ(good.out, "0/1\n") << good.err;
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_EQ(without_certificate.exit_code, 1);
  EXPECT_THAT(without_certificate.err, HasSubstr("hasten: etcd at https://127.0.0.1:" + port_ + ": "));
  EXPECT_EQ(without_trust.exit_code, 1);
  EXPECT_THAT(without_trust.err, HasSubstr("certificate"));
}

TEST_F(Etcd, TheServerMayAskForAUser) {
  start_server();
  const auto post = launcher::make_http_post(std::chrono::seconds(10), {});
  for (const auto& [path, body] :
       std::vector<std::pair<std::string, std::string>>{{"user/add", R"({"name":"root","password":"of etcd"})"},
                                                        {"role/add", R"({"name":"root"})"},
                                                        {"user/grant", R"({"user":"root","role":"root"})"},
                                                        {"enable", "{}"}}) {
    const auto answer = post({"http://127.0.0.1:" + port_ + "/v3/auth/" + path, body});
    ASSERT_EQ(answer.status, 200) << path << answer.text << answer.error;
  }
  auto variables = environment();

  const CommandResult nobody = run_beside_server(node("etcd", "echo never", "join_timeout=0.5"), variables);
  variables["HASTEN_ETCD_USER"] = "root:of etcd";
  const CommandResult root = run_beside_server(
      node("etcd", "echo $RANK/$WORLD_SIZE ${HASTEN_ETCD_USER:-no user}", "last_call_timeout=0"), variables);
  variables["HASTEN_ETCD_USER"] = "root:guessed";
  const CommandResult guesser = run_beside_server(node("etcd", "echo never", "join_timeout=0.5"), variables);
  stop_server();

  EXPECT_EQ(nobody.exit_code, 1);
  EXPECT_THAT(nobody.err, HasSubstr("user name is empty"));
  EXPECT_EQ(root.out, "0/1 no user\n") << root.err;
  EXPECT_EQ(root.exit_code, 0);
  EXPECT_EQ(guesser.exit_code, 1);
  EXPECT_THAT(guesser.err, HasSubstr("user 'root' cannot log in"));
}

TEST_F(Etcd, AMissingServerIsNamed) {
  const CommandResult result = test::run_command(node("etcd", "echo never", "join_timeout=0.5"), environment());

  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("hasten: etcd at http://127.0.0.1:" + port_ + ": "));
  EXPECT_THAT(result.err, HasSubstr("no host of the rendezvous was found within 0.5 s (join_timeout)"));
}

}  // namespace
}  // namespace hasten
