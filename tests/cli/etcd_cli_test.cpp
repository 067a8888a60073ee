// `hasten launch --rdzv_backend etcd` with a real etcd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <memory>

#include "cli/launch_folder.h"
#include "hasten/launch/port.h"

namespace hasten {
namespace {

using test::Command;
using test::CommandResult;
using testing::HasSubstr;

class Etcd : public test::LaunchFolder {
 protected:
  using Words = std::vector<std::string>;

  void start_server() {
    const std::string client = "http://127.0.0.1:" + port_;
    const std::string peer = "http://127.0.0.1:" + std::to_string(launcher::free_port());
    server_ = std::make_unique<Command>(
        Words{"/usr/bin/etcd", "--data-dir", folder() / "etcd", "--listen-client-urls", client,
              "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls",
              peer, "--initial-cluster", "default=" + peer, "--logger", "zap", "--log-outputs", "stdout"});
    std::string line = "-";
    while (!line.empty() && line.find("serving client traffic insecurely") == std::string::npos)
      line = server_->read_line();
    ASSERT_FALSE(line.empty()) << "no etcd (apt install etcd-server)";
  }
  void stop_server() {
    kill(server_->pid(), SIGTERM);
    server_->finish();
    server_.reset();
  }

  std::vector<std::string> node(const std::string& backend, const std::string& script,
                                const std::string& conf = "last_call_timeout=0.5") const {
    return script_words({"--nnodes", "1:3", "--rdzv_backend", backend, "--rdzv_endpoint",
                         "127.0.0.1:" + port_, "--rdzv_id", "job", "--rdzv_conf", conf},
                        script);
  }
  static void end(Command& command) {
    kill(command.pid(), SIGTERM);
    EXPECT_EQ(command.finish().exit_code, 143);
  }

  static constexpr const char* kWork = "echo $RANK/$WORLD_SIZE; exec sleep 1000";
  const std::string port_ = std::to_string(launcher::free_port());
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

TEST_F(Etcd, AMissingServerIsNamed) {
  const CommandResult result =
      test::run_command(node("etcd", "echo never", "join_timeout=0.5"), environment());

  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("hasten: etcd at http://127.0.0.1:" + port_ + ": "));
  EXPECT_THAT(result.err, HasSubstr("no host of the rendezvous was found within 0.5 s (join_timeout)"));
}

}  // namespace
}  // namespace hasten
