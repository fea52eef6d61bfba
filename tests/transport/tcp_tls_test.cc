// Data streams under TLS: what travels is not plain, and whoever has no certificate of the cluster reads nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "common/tcp_address.h"
#include "common/tcp_listener.h"
#include "server/transport/region.h"
#include "server/transport/tcp_wire.h"
#include "tests/transport/cluster_files.h"
#include "tests/transport/two_nodes.h"

namespace cairn::transport {
namespace {

using ::testing::HasSubstr;

constexpr PeerId kOwner = {.rank = 1, .incarnation = 5};

std::unique_ptr<TcpTransport> StartWith(PeerId self, const StreamSecurity& security) {
  return StartTcp(self, {.stall = kLongStall, .idle = kLongStall, .security = security},
                  {.stall = kLongStall, .idle = kLongStall, .security = security});
}

// Passes one connection after the other on to `target`, and keeps what goes by.
class Tap {
 public:
  explicit Tap(std::string target)
      : target_(std::move(target)),
        listener_(*ListenTcp(*TcpAddress::Parse("127.0.0.1:0"))),
        thread_([this] { Run(); }) {}
  ~Tap() {
    stop_ = true;
    thread_.join();
  }
  std::string Address() const { return TcpAddress::OfSocket(listener_.get())->ToString(); }
  std::string Seen() const {
    MutexLock lock(&mu_);
    return seen_;
  }

 private:
  void Run() {
    while (!stop_) {
      const auto ready = WaitReadable(listener_.get(), 20);
      if (!ready.ok() || !*ready) continue;
      const UniqueFd from(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const auto to = TcpSocket::Connect(target_, After(10), kLongStall, stop_);
      if (to.ok()) Pass(from.get(), to->get());
    }
  }
  void Pass(int a, int b) {
    std::array<pollfd, 2> ends = {pollfd{a, POLLIN, 0}, pollfd{b, POLLIN, 0}};
    std::array<char, 1 << 16> bytes = {};
    while (!stop_) {
      if (poll(ends.data(), ends.size(), 20) <= 0) continue;
      for (int i = 0; i < 2; ++i) {
        if (ends[static_cast<size_t>(i)].revents == 0) continue;
        const ssize_t n = ::recv(i == 0 ? a : b, bytes.data(), bytes.size(), 0);
        if (n <= 0) return;
        {
          MutexLock lock(&mu_);
          seen_.append(bytes.data(), static_cast<size_t>(n));
        }
        for (ssize_t at = 0; at < n;) {
          pollfd room = {i == 0 ? b : a, POLLOUT, 0};
          (void)poll(&room, 1, 1000);
          const ssize_t sent = ::send(room.fd, bytes.data() + at, static_cast<size_t>(n - at),
                                      MSG_NOSIGNAL | MSG_DONTWAIT);
          if (sent < 0 && errno != EAGAIN) return;
          at += std::max<ssize_t>(sent, 0);
        }
      }
    }
  }

  const std::string target_;
  const UniqueFd listener_;
  std::atomic<bool> stop_ = false;
  mutable Mutex mu_;
  std::string seen_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

class TcpTls : public ::testing::Test {
 protected:
  void Start(const StreamSecurity& owner, const StreamSecurity& reader) {
    owner_ = StartWith(kOwner, owner);
    reader_ = StartWith(kReader, reader);
    ASSERT_TRUE(owner_->Attach(kOwned, owned_.fd(), owned_.size()).ok());
    ASSERT_TRUE(reader_->Attach(kFetched, fetched_.fd(), fetched_.size()).ok());
    ASSERT_TRUE(owner_->Grant(token_, kReader, {{kOwned, 0, owned_.size()}}).ok());
  }
  // Of the first bytes, through whatever is at `address`.
  StatusOr<uint32_t> Read(const std::string& address, uint64_t length = 1 << 20) {
    ReadRequest request =
        ReadOf(*owner_, token_, *owner_->Describe({kOwned, 0, owned_.size()}), 0, length, fetched_);
    request.address = address;
    return ReadNow(reader_.get(), std::move(request));
  }

  ClusterFiles files_{"ours"};
  const std::string bytes_ = std::string(1 << 20, 's') + Noise(kBlockBytes * 3 + 17, 3);
  const Memory owned_{bytes_};
  const Memory fetched_{bytes_.size()};
  const GrantToken token_ = NewGrantToken();
  std::unique_ptr<TcpTransport> owner_, reader_;
};

TEST_F(TcpTls, WhatIsReadIsRightAndWhatTravelsIsNotPlain) {
  Start(files_.Of(1), files_.Of(2));
  {
    const Tap tap(owner_->Address());
    const auto crc = Read(tap.Address());
    ASSERT_TRUE(crc.ok()) << crc.status();
    EXPECT_EQ(*crc, Crc32c(0, bytes_.data(), 1 << 20));
    const std::string seen = tap.Seen();
    EXPECT_GT(seen.size(), size_t{1} << 20);
    EXPECT_EQ(seen.find(std::string(64, 's')), std::string::npos);
    const std::string token(token_.begin(), token_.end());
    EXPECT_EQ(seen.find(token), std::string::npos);
  }
  const std::string region = *owner_->Describe({kOwned, 0, owned_.size()});
  EXPECT_TRUE(ReadAllOf(reader_.get(), *owner_, token_, region, bytes_, fetched_).ok());
  EXPECT_EQ(fetched_.Read(0, bytes_.size()), bytes_);
}

TEST_F(TcpTls, WithoutItTheSameTapSeesTheBytes) {  // so that the test above can fail
  Start({}, {});
  const Tap tap(owner_->Address());
  ASSERT_TRUE(Read(tap.Address()).ok());
  EXPECT_NE(tap.Seen().find(std::string(64, 's')), std::string::npos);
}

TEST_F(TcpTls, AReaderWithoutTlsReadsNothing) {
  Start(files_.Of(1), {});
  const auto crc = Read(owner_->Address());
  EXPECT_TRUE(absl::IsUnavailable(crc.status())) << crc.status();
  EXPECT_EQ(fetched_.Read(0, 64), std::string(64, '\0'));
}

TEST_F(TcpTls, AnOwnerWithoutTlsIsNotShownAToken) {
  Start({}, files_.Of(2));
  const Tap tap(owner_->Address());
  const auto crc = Read(tap.Address());
  EXPECT_TRUE(absl::IsUnavailable(crc.status())) << crc.status();
  EXPECT_EQ(tap.Seen().find(std::string(token_.begin(), token_.end())), std::string::npos);
}

TEST_F(TcpTls, ACertificateOfAnotherAuthorityReadsNothing) {
  ClusterFiles theirs("ours");
  Start(files_.Of(1), theirs.Of(2));
  const auto crc = Read(owner_->Address());
  EXPECT_TRUE(absl::IsUnavailable(crc.status())) << crc.status();
  EXPECT_THAT(crc.status().message(), HasSubstr("certificate"));
}

TEST_F(TcpTls, AStreamIsOfTheRankThatItsCertificateNames) {
  StreamSecurity third = files_.Of(3);  // which says that it is rank 2
  Start(files_.Of(1), third);
  const auto crc = Read(owner_->Address());
  EXPECT_TRUE(absl::IsUnavailable(crc.status())) << crc.status();
  EXPECT_EQ(fetched_.Read(0, 64), std::string(64, '\0'));
}

TEST_F(TcpTls, AMemberOfAnotherClusterIsRefused) {
  StreamSecurity other = files_.Of(1);
  other.cluster = "theirs";
  Start(other, files_.Of(2));
  EXPECT_TRUE(absl::IsUnavailable(Read(owner_->Address()).status()));
}

}  // namespace
}  // namespace cairn::transport
