#include "client/cli/certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <utility>

namespace cairn::cli {
namespace {

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using Bio = std::unique_ptr<BIO, FreeBio>;

struct FreeExtension {
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
};

struct FreeNumber {
  void operator()(BIGNUM* number) const { BN_free(number); }
};

// What went wrong in OpenSSL, which has no more to say about it.
Status Failed(absl::string_view what) {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return absl::InternalError(
      absl::StrCat(what, ": ", reason != nullptr ? reason : "no reason is known"));
}

std::string AuthorityName(const std::string& cluster) {
  return absl::StrCat("Cairn cluster ", cluster);
}

// `value` as openssl.cnf has it.
Status Extend(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, FreeExtension> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) {
    return Failed("certificate extension");
  }
  return absl::OkStatus();
}

// 16 random bytes: no two certificates of an authority have the same.
Status DrawSerial(X509* certificate) {
  unsigned char bytes[16];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) return Failed("random bytes");
  bytes[0] &= 0x7F;
  const std::unique_ptr<BIGNUM, FreeNumber> number(BN_bin2bn(bytes, sizeof(bytes), nullptr));
  if (number == nullptr ||
      BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) == nullptr) {
    return Failed("serial number");
  }
  return absl::OkStatus();
}

std::string TextOf(BIO* bio) {
  char* bytes = nullptr;
  const long length = BIO_get_mem_data(bio, &bytes);
  return std::string(bytes, static_cast<size_t>(length));
}

Bio OfText(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string CommonName(X509* certificate) {
  char name[256] = {};
  const int length = X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName,
                                               name, sizeof(name));
  return length < 0 ? "" : std::string(name, static_cast<size_t>(length));
}

}  // namespace

StatusOr<Authority::Key> Authority::NewKey() {
  Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("key");
  return key;
}

StatusOr<Authority::Certificate> Authority::Begin(const std::string& subject, EVP_PKEY* key,
                                                  const Validity& validity) {
  Certificate certificate(X509_new());
  if (certificate == nullptr) return Failed("certificate");
  constexpr long kVersion3 = 2;
  CAIRN_RETURN_IF_ERROR(DrawSerial(certificate.get()));
  if (X509_set_version(certificate.get(), kVersion3) != 1 ||
      X509_gmtime_adj(X509_getm_notBefore(certificate.get()), validity.from) == nullptr ||
      X509_gmtime_adj(X509_getm_notAfter(certificate.get()), validity.to) == nullptr ||
      X509_set_pubkey(certificate.get(), key) != 1 ||
      X509_NAME_add_entry_by_NID(X509_get_subject_name(certificate.get()), NID_commonName,
                                 MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(subject.data()),
                                 static_cast<int>(subject.size()), -1, 0) != 1) {
    return Failed("certificate");
  }
  return certificate;
}

StatusOr<CertifiedKey> Authority::Write(X509* certificate, EVP_PKEY* key) {
  const Bio certificates(BIO_new(BIO_s_mem())), keys(BIO_new(BIO_s_mem()));
  if (certificates == nullptr || keys == nullptr ||
      PEM_write_bio_X509(certificates.get(), certificate) != 1 ||
      PEM_write_bio_PKCS8PrivateKey(keys.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return Failed("PEM");
  }
  return CertifiedKey{TextOf(certificates.get()), TextOf(keys.get())};
}

StatusOr<Authority> Authority::Make(const std::string& cluster, const Validity& validity) {
  Authority made;
  CAIRN_ASSIGN_OR_RETURN(made.key_, NewKey());
  CAIRN_ASSIGN_OR_RETURN(made.certificate_,
                         Begin(AuthorityName(cluster), made.key_.get(), validity));
  X509* const own = made.certificate_.get();
  if (X509_set_issuer_name(own, X509_get_subject_name(own)) != 1) return Failed("issuer");
  CAIRN_RETURN_IF_ERROR(Extend(own, own, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  CAIRN_RETURN_IF_ERROR(Extend(own, own, NID_key_usage, "critical,keyCertSign,cRLSign"));
  CAIRN_RETURN_IF_ERROR(Extend(own, own, NID_subject_key_identifier, "hash"));
  if (X509_sign(own, made.key_.get(), EVP_sha256()) == 0) return Failed("signature");
  return made;
}

StatusOr<Authority> Authority::Load(const std::string& cluster, const CertifiedKey& pem) {
  Authority loaded;
  const Bio certificate = OfText(pem.certificate), key = OfText(pem.key);
  loaded.certificate_.reset(PEM_read_bio_X509(certificate.get(), nullptr, nullptr, nullptr));
  loaded.key_.reset(PEM_read_bio_PrivateKey(key.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (loaded.certificate_ == nullptr || loaded.key_ == nullptr ||
      X509_check_private_key(loaded.certificate_.get(), loaded.key_.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError("not a certificate and its key");
  }
  const std::string name = CommonName(loaded.certificate_.get());
  if (name != AuthorityName(cluster)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the authority of \"", name, "\", not of \"", AuthorityName(cluster), "\""));
  }
  return loaded;
}

StatusOr<CertifiedKey> Authority::ToPem() const { return Write(certificate_.get(), key_.get()); }

StatusOr<CertifiedKey> Authority::Issue(const MemberName& member, const Validity& validity) const {
  CAIRN_ASSIGN_OR_RETURN(const Key key, NewKey());
  const std::string subject = absl::StrCat("Cairn rank ", member.rank);
  CAIRN_ASSIGN_OR_RETURN(const Certificate made, Begin(subject, key.get(), validity));
  X509* const certificate = made.get();
  X509* const issuer = certificate_.get();
  if (X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) != 1) {
    return Failed("issuer");
  }
  CAIRN_RETURN_IF_ERROR(Extend(certificate, issuer, NID_basic_constraints, "critical,CA:FALSE"));
  CAIRN_RETURN_IF_ERROR(Extend(certificate, issuer, NID_key_usage, "critical,digitalSignature"));
  CAIRN_RETURN_IF_ERROR(Extend(certificate, issuer, NID_ext_key_usage, "serverAuth,clientAuth"));
  CAIRN_RETURN_IF_ERROR(
      Extend(certificate, issuer, NID_subject_alt_name, absl::StrCat("URI:", MemberUri(member))));
  CAIRN_RETURN_IF_ERROR(Extend(certificate, issuer, NID_authority_key_identifier, "keyid"));
  if (X509_sign(certificate, key_.get(), EVP_sha256()) == 0) return Failed("signature");
  return Write(certificate, key.get());
}

}  // namespace cairn::cli
