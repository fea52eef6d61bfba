// The files that a member shows itself with, before a daemon must load them.
#include "server/daemon/peer_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "client/cli/certificates.h"

namespace cairn::daemon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PeerFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "peers-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    options_.node.engine.ring.cluster = "ours";
    options_.node.engine.ring.rank = 1;
    options_.node.engine.ring.members = {{0, "127.0.0.1:7400"}, {1, "127.0.0.2:7400"}};
    options_.peers.tls = {Path("ca.pem"), Path("node.pem"), Path("node.key")};
    Write("ca.pem", authority_.ToPem()->certificate);
    Certify(authority_, {"ours", 1});
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static cli::Authority Make(const cli::Validity& validity = {}) {
    return *cli::Authority::Make("ours", validity);
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(Path(name)) << text;
  }
  void Certify(const cli::Authority& authority, const MemberName& name,
               const cli::Validity& validity = {}) {
    const auto pem = authority.Issue(name, validity);
    ASSERT_TRUE(pem.ok()) << pem.status();
    Write("node.pem", pem->certificate);
    Write("node.key", pem->key);
  }
  std::string Refusal() const {
    const Status checked = CheckPeerFiles(options_);
    if (checked.ok()) return "accepted";
    EXPECT_EQ(checked.code(), absl::StatusCode::kInvalidArgument);
    return std::string(checked.message());
  }

  const cli::Authority authority_ = Make();
  std::string folder_;
  Options options_;
};

constexpr int64_t kDay = 24 * 3600;

TEST_F(PeerFiles, ThoseOfThisMemberAreAccepted) { EXPECT_EQ(Refusal(), "accepted"); }

TEST_F(PeerFiles, WhereNoneAreNeededNoneAreLookedAt) {
  std::filesystem::remove(Path("ca.pem"));
  options_.node.engine.ring.members.erase(0);
  EXPECT_EQ(Refusal(), "accepted");
  options_.node.engine.ring.members[0] = "127.0.0.1:7400";
  EXPECT_NE(Refusal(), "accepted");
  options_.peers.tls = {};
  EXPECT_EQ(Refusal(), "accepted");
}

TEST_F(PeerFiles, AMissingOneIsNamed) {
  for (const char* name : {"node.key", "node.pem", "ca.pem"}) {
    std::filesystem::remove(Path(name));
    EXPECT_THAT(Refusal(), AllOf(HasSubstr(Path(name)), HasSubstr("No such file"))) << name;
  }
  EXPECT_THAT(Refusal(), HasSubstr("peers.ca: "));
}

TEST_F(PeerFiles, WhatIsNoPemIsNamed) {
  Write("node.key", "no key");
  EXPECT_THAT(Refusal(), HasSubstr("peers.key: " + Path("node.key") + ": has no private key"));
  Write("node.pem", "no certificate");
  EXPECT_THAT(Refusal(), HasSubstr("peers.cert: " + Path("node.pem") + ": has no certificate"));
  Write("ca.pem", "");
  EXPECT_THAT(Refusal(), HasSubstr("peers.ca: " + Path("ca.pem") + ": has no certificate"));
}

TEST_F(PeerFiles, AnotherCertificatesKeyIsRefused) {
  Write("node.key", authority_.Issue({"ours", 1})->key);
  EXPECT_THAT(Refusal(),
              AllOf(HasSubstr("peers.key: " + Path("node.key")),
                    HasSubstr("not the key of the certificate"), HasSubstr(Path("node.pem"))));
}

TEST_F(PeerFiles, ACertificateThatIsNotTheAuthoritysIsRefused) {
  Certify(Make(), {"ours", 1});
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("peers.cert: " + Path("node.pem")),
                               HasSubstr("no authority in peers.ca, " + Path("ca.pem"))));
}

TEST_F(PeerFiles, TwoAuthoritiesInOneFileBothCount) {
  const cli::Authority next = Make();
  Write("ca.pem", authority_.ToPem()->certificate + next.ToPem()->certificate);
  EXPECT_EQ(Refusal(), "accepted");
  Certify(next, {"ours", 1});
  EXPECT_EQ(Refusal(), "accepted");
}

TEST_F(PeerFiles, WhatIsNotGoodNowIsRefusedWithTheDate) {
  // 2001-09-09 01:46:40 UTC, from now.
  const int64_t then = 1'000'000'000 - static_cast<int64_t>(time(nullptr));
  Certify(authority_, {"ours", 1}, {then - kDay, then});
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("peers.cert: " + Path("node.pem")),
                               HasSubstr("expired at 2001-09-09 01:46:")));
  Certify(authority_, {"ours", 1}, {kDay, 2 * kDay});
  EXPECT_THAT(Refusal(), HasSubstr("is good from 20"));
  const cli::Authority old = Make({then - kDay, then});
  Write("ca.pem", old.ToPem()->certificate);
  Certify(old, {"ours", 1});
  EXPECT_THAT(Refusal(), HasSubstr("peers.ca: " + Path("ca.pem") + ": expired at 2001-09-09"));
}

TEST_F(PeerFiles, ACertificateOfAnotherMemberIsRefused) {
  Certify(authority_, {"ours", 0});
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("peers.cert: " + Path("node.pem")),
                               HasSubstr("it names cairn://cluster/ours/rank/0"),
                               HasSubstr("this member is cairn://cluster/ours/rank/1")));
  Certify(authority_, {"theirs", 1});
  EXPECT_THAT(Refusal(), HasSubstr("it names cairn://cluster/theirs/rank/1"));
}

}  // namespace
}  // namespace cairn::daemon
