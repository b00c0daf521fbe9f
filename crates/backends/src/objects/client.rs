//! [`store_of`]: the client of an object's server, with a limit for each answer.
//!
//! - C1. No answer brings more than [`ANSWER_BYTES_MAX`], also if the server announces more. The
//!   library takes the body of an answer that is an error into memory, all of it, and makes room
//!   for the length that the server has announced: without the limit a server could ask for all
//!   the memory there is, or for more, which ends the process.

use std::sync::Arc;

use async_trait::async_trait;
use http_body_util::{BodyExt, Limited};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::{
    ClientConfigKey, ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind,
    HttpRequest, HttpResponse, HttpResponseBody, HttpService, ReqwestConnector,
};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{ObjectStore, RetryConfig};

use super::planner::FETCH_BYTES_MAX;
use super::uri::{Address, Service};

/// How long a connection may take.
const CONNECT_SECONDS: &str = "10s";

/// The longest body of an answer: more than the longest range that is asked for.
const ANSWER_BYTES_MAX: usize = FETCH_BYTES_MAX as usize + (1 << 20);

/// Makes clients that keep C1.
#[derive(Debug)]
struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Bounded(ReqwestConnector::default().connect(options)?)))
    }
}

/// A client whose answers have a limit (C1).
#[derive(Debug)]
struct Bounded(HttpClient);

#[async_trait]
impl HttpService for Bounded {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = self.0.execute(request).await?;
        // The limit is also that of the length that the body announces.
        Ok(answer.map(|body| {
            let body = Limited::new(body, ANSWER_BYTES_MAX);
            let failed = |error| HttpError::new_boxed(HttpErrorKind::Unknown, error);
            HttpResponseBody::new(body.map_err(failed))
        }))
    }
}

/// A client that leaves repeats and limits of time to this module.
pub fn store_of(address: &Address) -> object_store::Result<(Arc<dyn ObjectStore>, Path)> {
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let client = [
        (ClientConfigKey::ConnectTimeout, CONNECT_SECONDS),
        // Each piece of an answer has a limit of its own.
        (ClientConfigKey::Timeout, "1day"),
    ];
    let key = || Path::from_url_path(&address.key);
    Ok(match address.service {
        Service::Http => {
            let is_plain = address.url.starts_with("http://");
            let options = ClientOptions::new().with_allow_http(is_plain);
            let options = client
                .into_iter()
                .fold(options, |options, (key, value)| options.with_config(key, value));
            let builder = HttpBuilder::new().with_url(&address.url).with_client_options(options);
            let builder = builder.with_http_connector(Connector);
            // The URL is the whole of it.
            (Arc::new(builder.with_retry(retry).build()?), Path::default())
        }
        Service::S3 => {
            let builder = AmazonS3Builder::from_env().with_url(&address.url).with_retry(retry);
            let builder = builder.with_http_connector(Connector);
            let builder = client.into_iter().fold(builder, |builder, (key, value)| {
                builder.with_config(AmazonS3ConfigKey::Client(key), value)
            });
            (Arc::new(builder.build()?), key()?)
        }
        Service::Gcs => {
            let builder = GoogleCloudStorageBuilder::from_env().with_url(&address.url);
            let builder = builder.with_http_connector(Connector);
            let builder = client.into_iter().fold(builder, |builder, (key, value)| {
                builder.with_config(GoogleConfigKey::Client(key), value)
            });
            (Arc::new(builder.with_retry(retry).build()?), key()?)
        }
        Service::Azure => {
            let builder = MicrosoftAzureBuilder::from_env().with_url(&address.url);
            let builder = builder.with_http_connector(Connector);
            let builder = client.into_iter().fold(builder, |builder, (key, value)| {
                builder.with_config(AzureConfigKey::Client(key), value)
            });
            (Arc::new(builder.with_retry(retry).build()?), key()?)
        }
    })
}
