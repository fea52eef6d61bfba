// Members of a cluster with certificates of its own, and those who have others, or none.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "client/cli/certificates.h"
#include "tests/rpc/peer_messages.h"
#include "tests/rpc/peers_fixture.h"

namespace cairn::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace peer = engine::peer;

constexpr cli::Validity kExpired = {-7200, -3600};

cli::Authority MakeAuthority(const std::string& cluster = "ours") {
  auto made = cli::Authority::Make(cluster);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

class PeersTls : public PeersFixture {
 protected:
  PeersTls() : authority_(MakeAuthority()) {
    std::string pattern = std::filesystem::temp_directory_path() / "cairn-tls-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~PeersTls() override { std::filesystem::remove_all(folder_); }
  void SetUp() override {
    PeersFixture::SetUp();
    ring_.erase(2);
  }

  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  // Of a certificate that `authority` has made, who trusts `trusted`.
  tls::TlsFiles Files(const cli::Authority& authority, const cli::Authority& trusted,
                      const MemberName& name, const cli::Validity& validity = {}) {
    const auto pem = authority.Issue(name, validity);
    EXPECT_TRUE(pem.ok()) << pem.status();
    const std::string number = std::to_string(++files_);
    return {Write("ca" + number, trusted.ToPem()->certificate),
            Write("cert" + number, pem->certificate), Write("key" + number, pem->key)};
  }
  tls::TlsFiles Files(const MemberName& name, const cli::Validity& validity = {}) {
    return Files(authority_, authority_, name, validity);
  }
  rpc::PeersOptions OptionsWith(engine::Rank rank, const tls::TlsFiles& files) const {
    rpc::PeersOptions options = Options(rank);
    options.tls = files;
    return options;
  }
  void StartFirst() { first_ = Start(a_, OptionsWith(0, Files({"ours", 0}))); }
  void StartPair() {
    StartFirst();
    second_ = Start(b_, OptionsWith(1, Files({"ours", 1})));
    ASSERT_TRUE(first_->host.AwaitMember(1, b_));
    ASSERT_TRUE(second_->host.AwaitMember(0, a_));
  }
  void ExpectUnharmed() {
    EXPECT_TRUE(first_->host.AwaitExchanges(1, /*answered=*/true, 2));
    EXPECT_EQ(first_->host.said().size(), 0u);
  }
  // A caller with its own idea of certificates; null when it has taken none.
  std::unique_ptr<RawPeer> Caller(const tls::TlsFiles& files, const MemberName& name) {
    auto context = tls::TlsContext::Load(files, name);
    EXPECT_TRUE(context.ok()) << context.status();
    auto raw = std::make_unique<RawPeer>(ring_[0], *(*context)->NewSession(/*server=*/false));
    EXPECT_TRUE(raw->stream().Handshake(RawPeer::In(5)).ok());
    return raw;
  }

  const cli::Authority authority_;
  std::string folder_;
  int files_ = 0;
  std::unique_ptr<Member> first_, second_;
};

// OpenSSL as any program uses it, which checks nothing of the other end.
class PlainTls {
 public:
  explicit PlainTls(const tls::TlsFiles& files) : context_(SSL_CTX_new(TLS_method())) {
    if (!files.cert.empty()) {
      EXPECT_EQ(SSL_CTX_use_certificate_file(context_, files.cert.c_str(), SSL_FILETYPE_PEM), 1);
      EXPECT_EQ(SSL_CTX_use_PrivateKey_file(context_, files.key.c_str(), SSL_FILETYPE_PEM), 1);
    }
  }
  ~PlainTls() { SSL_CTX_free(context_); }
  SSL_CTX* context() { return context_; }
  // Whether the member takes this caller: one byte of an answer would have to come.
  bool IsTaken(const std::string& address) {
    std::atomic<bool> never = false;
    auto socket = rpc::ConnectTcp(*TcpAddress::Parse(address), RawPeer::In(5), never);
    EXPECT_TRUE(socket.ok());
    fcntl(socket->get(), F_SETFL, 0);
    SSL* const ssl = SSL_new(context_);
    SSL_set_fd(ssl, socket->get());
    char byte = 0;
    bool taken = false;
    if (SSL_connect(ssl) == 1) {
      // A message of two bytes: it ends the connection, unless the handshake did.
      taken = SSL_read(ssl, &byte, 1) > 0;
      reason_ = ERR_reason_error_string(ERR_peek_error()) != nullptr
                    ? ERR_reason_error_string(ERR_peek_error())
                    : "";
    } else {
      const char* const reason = ERR_reason_error_string(ERR_peek_error());
      reason_ = reason == nullptr ? "closed" : reason;
    }
    ERR_clear_error();
    SSL_free(ssl);
    return taken;
  }
  const std::string& reason() const { return reason_; }

 private:
  SSL_CTX* const context_;
  std::string reason_;
};

TEST_F(PeersTls, MembersMeetAndAreHeard) {
  StartPair();
  const auto all = SomeOfEachKind();
  for (const peer::Message& message : all) first_->peers->Tell(1, message);
  EXPECT_TRUE(second_->host.AwaitSaid(all.size()));
  second_->host.set_grant(
      peer::GrantAnswer{7, std::string(16, 't'), std::string(8 << 20, 'm'), {}, 1});
  const auto got = first_->peers->AskGrant(1, {SomePart(1), ""}, RawPeer::In(30));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->answer.manifest, std::string(8 << 20, 'm'));
}

TEST_F(PeersTls, AMemberOfAForeignAuthorityIsRefused) {
  const cli::Authority foreign = MakeAuthority();
  StartFirst();
  second_ = Start(b_, OptionsWith(1, Files(foreign, foreign, {"ours", 1})));
  EXPECT_TRUE(first_->host.AwaitExchanges(1, /*answered=*/false, 3));
  EXPECT_TRUE(second_->host.AwaitExchanges(0, /*answered=*/false, 3));
  EXPECT_EQ(first_->host.answered(1), 0);
  EXPECT_EQ(second_->host.answered(0), 0);
  PlainTls caller(Files(foreign, foreign, {"ours", 1}));
  EXPECT_FALSE(caller.IsTaken(ring_[0]));
  EXPECT_THAT(caller.reason(), HasSubstr("unknown ca"));
}

TEST_F(PeersTls, AnExpiredCertificateIsRefused) {
  StartPair();
  PlainTls caller(Files({"ours", 1}, kExpired));
  EXPECT_FALSE(caller.IsTaken(ring_[0]));
  EXPECT_THAT(caller.reason(), HasSubstr("expired"));
  ExpectUnharmed();
}

TEST_F(PeersTls, AMemberWhoseCertificateHasExpiredIsNotBelieved) {
  const auto listener = ListenTcp(*TcpAddress::Parse(ring_[1]));
  ASSERT_TRUE(listener.ok());
  StartFirst();
  ASSERT_TRUE(WaitReadable(listener->get(), 10'000).value_or(false));
  const UniqueFd socket(accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
  PlainTls server(Files({"ours", 1}, kExpired));
  SSL* const ssl = SSL_new(server.context());
  SSL_set_fd(ssl, socket.get());
  // The caller says why: before its own Finished, in the middle of the handshake.
  EXPECT_NE(SSL_accept(ssl), 1);
  EXPECT_THAT(std::string(ERR_reason_error_string(ERR_peek_error())), HasSubstr("expired"));
  ERR_clear_error();
  SSL_free(ssl);
  EXPECT_TRUE(first_->host.AwaitNobody(1));
}

TEST_F(PeersTls, WhoHasNoCertificateIsRefused) {
  StartPair();
  PlainTls caller({});
  EXPECT_FALSE(caller.IsTaken(ring_[0]));
  ExpectUnharmed();
}

TEST_F(PeersTls, AnOlderTlsIsRefused) {
  StartPair();
  PlainTls caller(Files({"ours", 1}));
  SSL_CTX_set_max_proto_version(caller.context(), TLS1_2_VERSION);
  EXPECT_FALSE(caller.IsTaken(ring_[0]));
  EXPECT_THAT(caller.reason(), HasSubstr("protocol version"));
}

TEST_F(PeersTls, ACertificateOfAnotherClusterIsRefused) {
  StartPair();
  const MemberName name = {"theirs", 1};
  const auto result = Caller(Files(name), name)->Greet(SenderOf(b_));
  EXPECT_EQ(result.error.code, static_cast<int>(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(result.error.message, HasSubstr("cairn://cluster/theirs/rank/1"));
  ExpectUnharmed();
}

TEST_F(PeersTls, ACertificateOfAnotherRankIsRefused) {
  StartPair();
  const MemberName name = {"ours", 2};
  const auto result = Caller(Files(name), name)->Greet(SenderOf(b_));
  EXPECT_EQ(result.error.code, static_cast<int>(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(result.error.message, AllOf(HasSubstr("rank/2"), HasSubstr("not rank 1")));
  ExpectUnharmed();
  // The rank's own is taken.
  const MemberName own = {"ours", 1};
  EXPECT_FALSE(Caller(Files(own), own)->Greet(SenderOf(b_)).success.__isset.refused);
}

TEST_F(PeersTls, APlainCallerIsRefused) {
  StartPair();
  RawPeer raw(ring_[0]);
  ASSERT_TRUE(raw.SendLength(100).ok());
  ASSERT_TRUE(raw.Send(std::string(100, 'x')).ok());
  // What comes before the end is TLS's word about it, no answer.
  const auto length = raw.stream().ReceiveLength(RawPeer::In(5));
  EXPECT_TRUE(!length.ok() || *length > (1u << 24));
  ExpectUnharmed();
}

TEST_F(PeersTls, AMemberWithTlsAndOneWithoutDoNotMeet) {
  options_.call_timeout = kNanosPerSecond;
  StartFirst();
  second_ = Start(b_);
  EXPECT_TRUE(first_->host.AwaitExchanges(1, /*answered=*/false, 2));
  EXPECT_TRUE(second_->host.AwaitExchanges(0, /*answered=*/false, 2));
  EXPECT_EQ(first_->host.answered(1), 0);
}

TEST_F(PeersTls, FilesThatDoNotFitAreRefusedNamingTheOption) {
  const auto refusal = [&](const tls::TlsFiles& files) {
    FakePeerHost host(a_);
    const auto opened = rpc::Peers::Open(OptionsWith(0, files), &host);
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(opened.status().message());
  };
  tls::TlsFiles files = Files({"ours", 0});
  files.ca = folder_ + "/none";
  EXPECT_THAT(refusal(files), AllOf(HasSubstr("peers.ca"), HasSubstr("/none")));
  files = Files({"ours", 0});
  files.cert = Write("nonsense", "nonsense");
  EXPECT_THAT(refusal(files), HasSubstr("peers.cert"));
  files = Files({"ours", 0});
  files.key = Files({"ours", 0}).key;
  EXPECT_THAT(refusal(files), AllOf(HasSubstr("peers.key"), HasSubstr("mismatch")));
  EXPECT_THAT(refusal(Files({"ours", 0}, kExpired)),
              AllOf(HasSubstr("peers.cert"), HasSubstr("expired")));
  EXPECT_THAT(refusal(Files({"ours", 1})),
              AllOf(HasSubstr("rank/1"), HasSubstr("this member is cairn://cluster/ours/rank/0")));
  EXPECT_THAT(refusal(Files(MakeAuthority(), authority_, {"ours", 0})), HasSubstr("peers.cert"));
}

TEST(Certificates, AnAuthorityIsReadAgain) {
  const cli::Authority made = MakeAuthority();
  const auto pem = made.ToPem();
  ASSERT_TRUE(pem.ok());
  EXPECT_TRUE(cli::Authority::Load("ours", *pem).ok());
  EXPECT_THAT(std::string(cli::Authority::Load("theirs", *pem).status().message()),
              AllOf(HasSubstr("cluster ours"), HasSubstr("cluster theirs")));
  EXPECT_FALSE(cli::Authority::Load("ours", {pem->certificate, MakeAuthority().ToPem()->key}).ok());
  EXPECT_FALSE(cli::Authority::Load("ours", {"", ""}).ok());
}

TEST_F(PeersTls, AKeyThatOthersMayReadIsTold) {
  const std::string key = Files({"ours", 0}).key;
  ASSERT_EQ(::chmod(key.c_str(), 0600), 0);
  EXPECT_EQ(tls::KeyExposure(key), "");
  for (const mode_t mode : {0640, 0604}) {
    ASSERT_EQ(::chmod(key.c_str(), mode), 0);
    EXPECT_THAT(tls::KeyExposure(key), AllOf(HasSubstr(key), HasSubstr("speak as this member")));
  }
}

// With ring.members = catalog a certificate may name no rank; with a list it may not.
TEST_F(PeersTls, ACertificateForAnyRankIsTakenWhereTheMembersStandInTheCatalog) {
  const auto options = [&](engine::Rank rank, bool from_catalog) {
    rpc::PeersOptions with = OptionsWith(rank, Files({"ours", kAnyRank}));
    with.ring.from_catalog = from_catalog;
    return with;
  };
  EXPECT_FALSE(rpc::Peers::Open(options(0, false), nullptr).ok());
  rpc::PeersOptions strangers = options(0, true);
  strangers.tls = Files({"theirs", kAnyRank});
  EXPECT_FALSE(rpc::Peers::Open(strangers, nullptr).ok());
  first_ = Start(a_, options(0, true));
  second_ = Start(b_, options(1, true));
  EXPECT_TRUE(first_->host.AwaitMember(1, b_));
  EXPECT_TRUE(second_->host.AwaitMember(0, a_));
}

}  // namespace
}  // namespace cairn::testing
