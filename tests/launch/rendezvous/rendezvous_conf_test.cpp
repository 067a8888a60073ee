#include "hasten/launch/rendezvous/rendezvous_conf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hasten::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RendezvousConf read(const std::string& conf) {
  std::vector<std::string> problems;
  const RendezvousConf result = read_rendezvous_conf(conf, problems);
  EXPECT_THAT(problems, IsEmpty());
  return result;
}

std::vector<std::string> problems_of(const std::string& conf) {
  std::vector<std::string> problems;
  read_rendezvous_conf(conf, problems);
  return problems;
}

TEST(RendezvousConf, HasTorchrunsNames) {
  const RendezvousSettings settings =
      read("join_timeout=60,last_call_timeout=0.5,keep_alive_interval=2,keep_alive_max_attempt=3,use_libuv=1").settings;

  EXPECT_EQ(settings.join_timeout, Seconds(60));
  EXPECT_EQ(settings.last_call_timeout, Seconds(0.5));
  EXPECT_EQ(settings.loss_timeout(), Seconds(6));
  EXPECT_EQ(read("timeout=9").settings.join_timeout, Seconds(9));
  EXPECT_EQ(read("").settings.loss_timeout(), Seconds(5));
}

TEST(RendezvousConf, NamesEtcdsCertificatesAsBothBackendsDo) {
  for (const char* conf :
       {"protocol=https,cacert=a,cert=b,key=c", "protocol=https,ca_cert=a,ssl_cert=b,ssl_cert_key=c"}) {
    const EtcdAccess etcd = read(conf).etcd;

    EXPECT_TRUE(etcd.tls);
    EXPECT_EQ(etcd.authority + etcd.certificate + etcd.key, "abc");
  }
  EXPECT_FALSE(read("protocol=http").etcd.tls);
}

TEST(RendezvousConf, AllThatIsWrongIsNamed) {
  EXPECT_THAT(problems_of("joint_timeout=1,join_timeout=soon"),
              ElementsAre("--rdzv_conf: 'joint_timeout' is not one of join_timeout, last_call_timeout, "
                          "keep_alive_interval, keep_alive_max_attempt, protocol, cacert, cert, key, did you mean "
                          "'join_timeout'?",
                          "--rdzv_conf: join_timeout=soon is no number between 0 and 1e9"));
  EXPECT_THAT(problems_of("timeout=0"),
              ElementsAre("--rdzv_conf: join_timeout=0 is no time; expected seconds above 0"));
  EXPECT_THAT(problems_of("keep_alive_interval=0"), ElementsAre(HasSubstr("would lose every node")));
  EXPECT_THAT(problems_of("protocol=ftp"), ElementsAre("--rdzv_conf: protocol=ftp is neither http nor https"));
  EXPECT_THAT(problems_of("cert=b"), ElementsAre("--rdzv_conf: cacert, cert and key need protocol=https",
                                                 "--rdzv_conf: cert and key need each other"));
}

}  // namespace
}  // namespace hasten::launcher
