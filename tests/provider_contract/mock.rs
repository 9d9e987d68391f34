//! The mock and its cloud.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mock_cloud::faults::{FailWith, Fault, FaultRule, Op};
use mock_cloud::model::Labels;
use mock_cloud::{Config, Running};
use proxy_operator::providers::{Instance, Provider};
use runtime_kit::SystemClock;

use crate::suite::{Refusal, Site, Trouble, build};

pub(crate) struct MockSite {
    cloud: Running,
    provider: Arc<dyn Provider>,
}

impl Site for MockSite {
    const ZONES: [&'static str; 2] = ["local-a", "local-b"];

    async fn start() -> Self {
        let config = Config {
            provision_delay: Some(Duration::from_millis(200)),
            delete_delay: Some(Duration::from_millis(200)),
            ..Config::default()
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let cloud = mock_cloud::start(config, address, SystemClock::shared());
        let cloud = cloud.await.unwrap();
        let text = format!(
            "providers:\n- name: under-test\n  type: mock\n  mock: {{url: 'http://{}'}}\n",
            cloud.address
        );
        let provider = build(&text).await.unwrap();
        Self { cloud, provider }
    }

    fn provider(&self) -> &dyn Provider {
        self.provider.as_ref()
    }

    async fn cause(&self, trouble: Trouble) {
        let (op, fault) = match trouble {
            Trouble::LostReply => (Op::Create, Fault::LostReply),
            Trouble::CreateHangs => (Op::Create, Fault::Hang),
            Trouble::QuotaInOperation => {
                let with = FailWith::Quota;
                (Op::Create, Fault::FailOperation { with })
            },
            Trouble::StockoutInOperation => {
                let with = FailWith::Stockout;
                (Op::Create, Fault::FailOperation { with })
            },
            Trouble::QuotaAtOnce => {
                let with = FailWith::Quota;
                (Op::Create, Fault::Fail { with })
            },
            Trouble::Read(refusal) => {
                let with = match refusal {
                    Refusal::Invalid => FailWith::Invalid,
                    Refusal::Unauthenticated => FailWith::Unauthorized,
                    Refusal::Forbidden => FailWith::Forbidden,
                    Refusal::Quota => FailWith::Quota,
                    Refusal::RateLimited => FailWith::RateLimited,
                    Refusal::Unavailable => FailWith::Transient,
                };
                (Op::Get, Fault::Fail { with })
            },
        };
        let rule = FaultRule {
            op,
            zone: None,
            count: 1,
            fault,
        };
        self.cloud.client().add_fault(&rule).await.unwrap();
    }

    async fn stop(&self, instance: &Instance) {
        let client = self.cloud.client();
        client
            .preempt(&instance.zone, &instance.name)
            .await
            .unwrap();
    }

    async fn ever_created(&self) -> usize {
        self.cloud.cloud.ever_created(&Labels::default()).len()
    }

    async fn finish(self) {
        self.cloud.stop().await;
    }
}
